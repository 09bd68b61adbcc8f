//! Steps with gradients that were computed outside of the wrapped model.

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::Module;
use burn::optim::GradientsParams;
use burn_dist::Result;

use super::ShardedOptimizer;

impl ShardedOptimizer {
    /// As [`step`](Self::step), with gradients that somebody else computed and added up over `micro_steps`
    /// micro-steps, as a pipeline does, in place of a backward pass. Collective.
    ///
    /// # Errors
    /// As [`step`](Self::step), and as
    /// [`DataParallel::deliver`](burn_dist::data_parallel::DataParallel::deliver).
    pub fn step_given<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        model: M,
        gradients: GradientsParams,
        micro_steps: usize,
    ) -> Result<M> {
        self.parallel.deliver(gradients, micro_steps, &model)?;
        self.step_from(lr.into(), model, None)
    }
}
