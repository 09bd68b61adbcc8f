//! [`Replicas`]: the whole model on every rank.

use std::any::Any;
use std::collections::HashMap;

use burn::module::{ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;
use burn::train::{Learner, LearnerModel};

use super::{GradientReduction, Parallelism, Pass, RankLearner, RankStart, StepSettings};
use crate::data_parallel::{
    DataParallel, DataParallelConfig, broadcast_untrained, clip_factor, scale_gradients,
    squares_of_gradients,
};
use crate::error::Result;

/// Data parallelism: the whole model and its optimizer, the learner's own, on every rank. The default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Replicas;

/// The model that batches go through. The learner's own optimizer, whatever it is, steps the learner's model,
/// whose parameters come back here.
struct Replica<M> {
    parallel: DataParallel,
    model: Option<M>,
    settings: StepSettings,
}

impl<M: LearnerModel> Parallelism<M> for Replicas {
    fn reads_optimizer_state(&self) -> bool {
        false
    }

    fn start(&self, start: RankStart<'_, M>) -> Result<Box<dyn RankLearner<M>>> {
        let settings = start.settings;
        let config = DataParallelConfig {
            bucket_sizes: settings.bucket_sizes.unwrap_or_default(),
            sum_ranks: settings.reduction == GradientReduction::Sum,
            average_micro_steps: false,
            shard_gradients: false,
        };
        let (parallel, model) = DataParallel::wrap_with(start.model, start.group, config)?;
        // The optimizer starts from the same values.
        let record = model.clone().materialize().into_record();
        start.learner.load_model(record);
        Ok(Box::new(Replica {
            parallel,
            model: Some(model),
            settings,
        }))
    }
}

impl<M: LearnerModel> RankLearner<M> for Replica<M> {
    fn accumulate(&mut self, pass: Option<Pass<'_, M>>) -> Result<()> {
        if let Some(pass) = pass {
            let model = self.model();
            self.parallel
                .no_sync_collected(model, || ((pass.run)(model), ()));
        }
        Ok(())
    }

    fn step(
        &mut self,
        learner: &mut Learner<M>,
        pass: Option<Pass<'_, M>>,
        active: usize,
    ) -> Result<()> {
        let model = self.model();
        let mut gradients = match pass {
            Some(pass) => self.parallel.sync_collected((pass.run)(model), model)?,
            None => self.parallel.sync_without_input(model)?,
        };
        let ranks = self.parallel.group().size();
        if let Some(factor) = self.settings.rank_factor(active, ranks) {
            scale_gradients(&mut gradients, model, factor);
        }
        if let Some(max_norm) = self.settings.max_grad_norm {
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

    fn valid(&self) -> Result<M> {
        let (table, group) = (self.parallel.parameters(), self.parallel.group());
        broadcast_untrained(self.model().valid(), table, group)
    }

    /// Only running statistics: the rest is there.
    fn write_back(&self, learner: &mut Learner<M>, wanted: bool) -> Result<()> {
        let model = self.valid()?;
        if wanted {
            learner.load_model(model.materialize().into_record());
        }
        Ok(())
    }

    fn write_back_optimizer(&self, _learner: &mut Learner<M>) -> Result<()> {
        Ok(())
    }

    /// It has been there all the time.
    fn give_up(&self, _learner: &mut Learner<M>) {}

    fn let_go(&self, _learner: &mut Learner<M>) {}
}

impl<M> Replica<M> {
    fn model(&self) -> &M {
        self.model.as_ref().expect("invariant: it is put back")
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
