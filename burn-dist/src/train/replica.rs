//! [`Replica`]: one rank's model between its batches.

use std::any::Any;
use std::collections::HashMap;

use burn::module::{ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn::train::{Learner, LearnerModel};

use super::GradientReduction;
use crate::data_parallel::{
    BucketSizes, DataParallel, DataParallelConfig, broadcast_untrained, clip_factor,
    scale_gradients, squares_of_gradients,
};
use crate::error::Result;
use crate::group::ProcessGroup;

/// The model that batches go through. The learner's own optimizer, whatever it is, steps the learner's model,
/// whose parameters come back here. Methods are called by all ranks in the same order.
pub(super) struct Replica<M> {
    parallel: DataParallel,
    model: Option<M>,
    reduction: GradientReduction,
}

impl<M: LearnerModel> Replica<M> {
    /// From this rank's model, which is the learner's, maybe with layers that know the group. Collective.
    pub(super) fn start(
        learner: &mut Learner<M>,
        model: M,
        group: &ProcessGroup,
        reduction: GradientReduction,
        bucket_sizes: BucketSizes,
    ) -> Result<Self> {
        let config = DataParallelConfig {
            bucket_sizes,
            sum_ranks: reduction == GradientReduction::Sum,
            average_micro_steps: false,
            shard_gradients: false,
        };
        let (parallel, model) = DataParallel::wrap_with(model, group, config)?;
        // The optimizer starts from the same values.
        learner.load_model(model.clone().materialize().into_record());
        Ok(Self {
            parallel,
            model: Some(model),
            reduction,
        })
    }

    /// The model to run a training step on.
    pub(super) fn model(&self) -> &M {
        self.model.as_ref().expect("invariant: it is put back")
    }

    /// Runs a micro-step whose gradients wait for the step; returns what else it made.
    pub(super) fn accumulate<T>(&self, micro_step: impl FnOnce(&M) -> (GradientsParams, T)) -> T {
        let model = self.model();
        self.parallel.no_sync_collected(model, || micro_step(model))
    }

    /// Ends a step, with the gradients of its last micro-step, if this rank had one; `active` ranks had a batch
    /// in it. The learner has its learning rate already. Collective.
    pub(super) fn step(
        &mut self,
        learner: &mut Learner<M>,
        gradients: Option<GradientsParams>,
        active: usize,
        max_grad_norm: Option<f64>,
    ) -> Result<()> {
        let model = self.model();
        let mut gradients = match gradients {
            Some(gradients) => self.parallel.sync_collected(gradients, model)?,
            None => self.parallel.sync_without_input(model)?,
        };
        let ranks = self.parallel.group().size();
        if self.reduction == GradientReduction::Mean && active < ranks {
            // The mean counted ranks without a batch too.
            let factor = ranks as f64 / active as f64;
            scale_gradients(&mut gradients, model, factor);
        }
        if let Some(max_norm) = max_grad_norm {
            let norm = squares_of_gradients(&gradients, model, |_| true).norm();
            if let Some(factor) = clip_factor(norm, max_norm)? {
                scale_gradients(&mut gradients, model, factor);
            }
        }
        learner.optimizer_step(gradients);
        let mut trained = Trained(HashMap::new());
        learner.model().visit(&mut trained);
        self.model = self.model.take().map(|model| model.map(&mut trained));
        Ok(())
    }

    /// The model to validate with: the first rank's running statistics on all ranks. Collective.
    pub(super) fn valid(&self) -> Result<M> {
        let (table, group) = (self.parallel.parameters(), self.parallel.group());
        broadcast_untrained(self.model().valid(), table, group)
    }

    /// Gives the learner what only this model has, running statistics: the learner is then what a checkpoint of one
    /// device has, the same on all ranks. Collective.
    pub(super) fn write_back(&self, learner: &mut Learner<M>) -> Result<()> {
        learner.load_model(self.valid()?.materialize().into_record());
        Ok(())
    }
}

/// The trained parameters of one model, for another with the same identifiers.
struct Trained(HashMap<ParamId, Box<dyn Any>>);

impl ModuleVisitor for Trained {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.base();
        if value.is_require_grad() {
            self.0.insert(param.id, Box::new(value));
        }
    }
}

impl ModuleMapper for Trained {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let new = self.0.get(&param.id);
        match new.and_then(|value| value.downcast_ref::<Tensor<D>>()) {
            Some(new) => {
                let new = new.clone();
                param.map(|_| new)
            }
            None => param,
        }
    }
}
