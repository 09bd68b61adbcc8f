//! [`Replicas`]: data parallelism.

use std::any::Any;
use std::collections::HashMap;

use burn::module::{ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn::train::{Learner, LearnerModel};

use super::{GradientReduction, Parallelism, RankLearner, StepScale};
use crate::data_parallel::{
    DataParallel, DataParallelConfig, broadcast_untrained, scale_gradients, squares_of_gradients,
};
use crate::error::{DistError, Result};
use crate::group::ProcessGroup;

/// Every rank holds the whole model and the whole state of the learner's own optimizer, whatever it is.
#[derive(Debug, Clone, Default)]
pub(super) struct Replicas {
    pub(super) reduction: GradientReduction,
    pub(super) config: DataParallelConfig,
}

impl<M: LearnerModel> Parallelism<M> for Replicas {
    fn start(
        &self,
        learner: &mut Learner<M>,
        model: M,
        group: &ProcessGroup,
    ) -> Result<Box<dyn RankLearner<M>>> {
        let config = DataParallelConfig {
            sum_ranks: self.reduction == GradientReduction::Sum,
            average_micro_steps: false,
            shard_gradients: false,
            ..self.config.clone()
        };
        let (parallel, model) = DataParallel::wrap_with(model, group, config)?;
        // The optimizer steps the learner's own model, from the same values.
        learner.load_model(model.clone().materialize().into_record());
        Ok(Box::new(Replica {
            parallel,
            model: Some(model),
            reduction: self.reduction,
        }))
    }
}

struct Replica<M> {
    parallel: DataParallel,
    model: Option<M>,
    reduction: GradientReduction,
}

impl<M: LearnerModel> RankLearner<M> for Replica<M> {
    fn model(&self) -> &M {
        self.model.as_ref().expect("invariant: it is put back")
    }

    fn accumulate(&mut self, micro_step: &mut dyn FnMut(&M) -> GradientsParams) -> Result<()> {
        let model = self.model();
        self.parallel
            .no_sync_collected(model, || (micro_step(model), ()));
        Ok(())
    }

    fn step(
        &mut self,
        learner: &mut Learner<M>,
        gradients: Option<GradientsParams>,
        scale: StepScale,
    ) -> Result<()> {
        let model = self.model();
        let mut gradients = match gradients {
            Some(gradients) => self.parallel.sync_collected(gradients, model)?,
            None => self.parallel.sync_without_input(model)?,
        };
        let ranks = self.parallel.group().size();
        if self.reduction == GradientReduction::Mean && scale.active < ranks {
            // The mean counted ranks without a batch too.
            let factor = ranks as f64 / scale.active as f64;
            scale_gradients(&mut gradients, model, factor);
        }
        if let Some(max_norm) = scale.max_grad_norm {
            let norm = squares_of_gradients(&gradients, model, |_| true).norm();
            // 1e-6 as in `clip_grad_norm`.
            let factor = max_norm / (norm + 1e-6);
            if norm.is_finite() && factor < 1.0 {
                scale_gradients(&mut gradients, model, factor);
            }
        }
        learner.optimizer_step(gradients);
        let mut trained = Trained(HashMap::new());
        learner.model().visit(&mut trained);
        self.model = self.model.take().map(|model| model.map(&mut trained));
        Ok(())
    }

    fn valid(&mut self) -> Result<M> {
        let model = self.model().valid();
        let (table, group) = (self.parallel.parameters(), self.parallel.group());
        broadcast_untrained(model, table, group)
    }

    fn write_back(&mut self, learner: &mut Learner<M>, _with_state: bool) -> Result<()> {
        // Its trained parameters are there; running statistics are not.
        if self.parallel.group().index() == 0 {
            learner.load_model(self.model().clone().materialize().into_record());
        }
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

/// Checks a norm to clip to.
///
/// # Errors
/// [`DistError::Config`] if it is not a positive number.
pub(super) fn check_norm(max_norm: Option<f64>) -> Result<()> {
    match max_norm {
        Some(norm) if norm.is_nan() || norm <= 0.0 => Err(DistError::config(
            format!("gradients are to be clipped to a norm of {norm}"),
            "give a positive one, 1 for example",
        )),
        _ => Ok(()),
    }
}
