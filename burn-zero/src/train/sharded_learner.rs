//! [`ShardedLearner`]: stages 1 and 2 in Burn's trainer.

use std::collections::HashMap;

use burn::module::ParamId;
use burn::tensor::{Device, Tensor};
use burn::train::{Learner, LearnerModel};
use burn_dist::Result;
use burn_dist::data_parallel::broadcast_untrained;
use burn_dist::train::{Pass, RankLearner, RankStart, StepSettings};

use super::learner_content::{fill, let_go};
use crate::whole_values::ReadValues;
use crate::{ShardableOptimizer, ShardedOptimizer, ShardedOptimizerConfig};

/// A whole model on every rank, and a part of its optimizer.
pub(super) struct ShardedLearner<M> {
    sharded: ShardedOptimizer,
    model: Option<M>,
    device: Device,
    settings: StepSettings,
    no_sync: bool,
}

impl<M: LearnerModel> ShardedLearner<M> {
    pub(super) fn start(
        start: RankStart<'_, M>,
        config: ShardedOptimizerConfig,
        optimizer: ShardableOptimizer,
        no_sync: bool,
    ) -> Result<Self> {
        let (mut sharded, model) =
            ShardedOptimizer::wrap_with(start.model, optimizer, start.group, config)?;
        if let Some(state) = start.optimizer_state {
            sharded.load_state(state)?;
        }
        let_go(start.learner);
        Ok(Self {
            sharded,
            device: first_device(&model),
            model: Some(model),
            settings: start.settings,
            no_sync,
        })
    }

    fn fill(&self, learner: &mut Learner<M>, model: &M, masters: HashMap<ParamId, Tensor<1>>) {
        let specs = self.sharded.data_parallel().parameters().specs();
        let mut values = ReadValues::of(model, specs.iter().map(|spec| spec.id));
        values.extend(masters);
        fill(learner, values, &self.device);
    }

    fn model(&self) -> &M {
        self.model.as_ref().expect("invariant: it is put back")
    }
}

impl<M: LearnerModel> RankLearner<M> for ShardedLearner<M> {
    fn accumulate(&mut self, pass: Option<Pass<'_, M>>) -> Result<()> {
        let model = self.model.as_ref().expect("invariant: it is put back");
        if self.no_sync {
            if let Some(pass) = pass {
                let parallel = self.sharded.data_parallel();
                parallel.no_sync_collected(model, || ((pass.run)(model), ()));
            }
            return Ok(());
        }
        let gradients = pass.map(|pass| (pass.run)(model));
        self.sharded.accumulate_collected(gradients, model)
    }

    fn step(
        &mut self,
        learner: &mut Learner<M>,
        pass: Option<Pass<'_, M>>,
        active: usize,
    ) -> Result<()> {
        let gradients = pass.map(|pass| (pass.run)(self.model()));
        let model = self.model.take().expect("invariant: it is put back");
        let factor = self
            .settings
            .rank_factor(active, self.sharded.group().size());
        let lr = learner.lr_current();
        let stepped = self.sharded.step_collected(lr, model, gradients, factor)?;
        self.model = Some(stepped);
        Ok(())
    }

    fn valid(&self) -> Result<M> {
        let parallel = self.sharded.data_parallel();
        broadcast_untrained(
            self.model().valid(),
            parallel.parameters(),
            parallel.group(),
        )
    }

    fn write_back(&self, learner: &mut Learner<M>, wanted: bool) -> Result<()> {
        let model = self.valid()?;
        let masters = self.sharded.gather_masters(wanted)?;
        if wanted {
            self.fill(learner, &model, masters);
        }
        Ok(())
    }

    fn write_back_optimizer(&self, learner: &mut Learner<M>) -> Result<()> {
        if let Some(state) = self.sharded.gather_state()? {
            learner.load_optim(state);
        }
        Ok(())
    }

    /// Without masters, which are on other ranks too.
    fn give_up(&self, learner: &mut Learner<M>) {
        if let Some(model) = &self.model {
            self.fill(learner, model, HashMap::new());
        }
    }

    fn let_go(&self, learner: &mut Learner<M>) {
        let_go(learner);
    }
}

/// A rank has one device.
pub(super) fn first_device<M: LearnerModel>(model: &M) -> Device {
    let device = model.devices().into_iter().next();
    device.unwrap_or_default().autodiff()
}
