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
        self.step_from(lr.into(), model, None, None)
    }

    /// As [`accumulate`](Self::accumulate), with gradients that were collected for the wrapped model already,
    /// as a `TrainStep` does; `None` for a rank without a batch. Collective.
    ///
    /// # Errors
    /// As [`accumulate`](Self::accumulate).
    pub fn accumulate_collected<M: Module>(
        &mut self,
        gradients: Option<GradientsParams>,
        model: &M,
    ) -> Result<()> {
        if let Some(gradients) = gradients {
            self.parallel.collect(gradients, model);
        }
        self.accumulate_from(None)
    }

    /// As [`step`](Self::step), with gradients that were collected for the wrapped model already, as a
    /// `TrainStep` does; `None` for a rank without a batch. The mean over ranks is multiplied by `factor`, before
    /// it is clipped. Collective.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn step_collected<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        model: M,
        gradients: Option<GradientsParams>,
        factor: Option<f64>,
    ) -> Result<M> {
        if let Some(gradients) = gradients {
            self.parallel.collect(gradients, &model);
        }
        self.step_from(lr.into(), model, None, factor)
    }
}
