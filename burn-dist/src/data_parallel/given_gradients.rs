//! Gradients that were computed outside of a wrapped model.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use super::DataParallel;
use super::reducer::Reducer;
use crate::backend::GradientSink;
use crate::error::{DistError, Result};

impl DataParallel {
    /// Takes in gradients that somebody else computed and added up over `micro_steps` micro-steps, as a
    /// pipeline does, in place of backward passes through the wrapped model: what follows is
    /// [`sync_without_input`](Self::sync_without_input). Local, but full buckets start to travel.
    ///
    /// # Errors
    /// [`DistError::Config`] for no micro-steps, or if some are pending of [`no_sync`](Self::no_sync).
    pub fn deliver<M: Module>(
        &self,
        gradients: GradientsParams,
        micro_steps: usize,
        model: &M,
    ) -> Result<()> {
        let pending = self.pending_micro_steps();
        if micro_steps == 0 || pending > 0 {
            return Err(DistError::config(
                format!(
                    "rank {}: gradients of {micro_steps} micro-steps are delivered, {pending} others wait",
                    self.group().rank()
                ),
                "deliver the sum over at least one micro-step, once in a step, and use no no_sync in it",
            ));
        }
        self.reducer.expect_micro_steps(micro_steps - 1);
        self.collect(gradients, model);
        Ok(())
    }

    /// As [`no_sync`](Self::no_sync), for a pass that has collected its gradients for the wrapped model
    /// already, as a `TrainStep` does; returns what else the pass made. Local.
    pub fn no_sync_collected<M: Module, T>(
        &self,
        model: &M,
        pass: impl FnOnce() -> (GradientsParams, T),
    ) -> T {
        self.without_launching(|| {
            let (gradients, made) = pass();
            self.collect(gradients, model);
            made
        })
    }

    /// As [`sync`](Self::sync), with gradients that were collected for the wrapped model already, as a
    /// `TrainStep` does. Collective; one all_reduce per bucket.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub fn sync_collected<M: Module>(
        &self,
        gradients: GradientsParams,
        model: &M,
    ) -> Result<GradientsParams> {
        self.collect(gradients, model);
        self.sync_without_input(model)
    }

    /// Takes in gradients of a backward pass that were collected for the wrapped model already, and that no
    /// hook has taken: what follows is [`sync_without_input`](Self::sync_without_input), or
    /// [`sync_shards`](Self::sync_shards) without gradients. Local, but full buckets start to travel.
    pub fn collect<M: Module>(&self, gradients: GradientsParams, model: &M) {
        model.visit(&mut Deliver {
            parallel: self,
            reducer: &self.reducer,
            gradients,
        });
    }
}

struct Deliver<'a> {
    parallel: &'a DataParallel,
    reducer: &'a Reducer,
    gradients: GradientsParams,
}

impl ModuleVisitor for Deliver<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let position = self.parallel.parameters().position(param.id);
        // A shared parameter is visited wherever it stands; its gradient is there once.
        if let Some(position) = position
            && let Some(gradient) = self.gradients.remove::<D>(param.id)
        {
            self.reducer.used(position);
            self.reducer.ready(position, gradient.into());
        }
    }
}
