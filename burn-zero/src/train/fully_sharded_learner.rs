//! [`FullyShardedLearner`]: stage 3 in Burn's trainer.

use burn::optim::{GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::Device;
use burn::train::{Learner, LearnerModel};
use burn_dist::Result;
use burn_dist::data_parallel::{ParameterTable, broadcast_untrained, scale_gradients};
use burn_dist::train::{Pass, RankLearner, RankStart, StepSettings};

use super::learner_content::{fill, let_go};
use super::sharded_learner::first_device;
use crate::whole_values::ReadValues;
use crate::{FullyShard, FullySharded, ShardableOptimizer};

/// A part of the model, of its gradients and of its optimizer.
pub(super) struct FullyShardedLearner<M> {
    sharded: FullySharded,
    table: ParameterTable,
    model: Option<M>,
    device: Device,
    optimizer: ModuleOptimizer,
    sums: GradientsAccumulator<M>,
    settings: StepSettings,
    no_sync: bool,
}

impl<M: LearnerModel> FullyShardedLearner<M> {
    pub(super) fn start(
        start: RankStart<'_, M>,
        settings: FullyShard,
        optimizer: ShardableOptimizer,
        no_sync: bool,
    ) -> Result<Self> {
        let table = ParameterTable::of_lazy(&start.model)?;
        let (sharded, model) = settings.wrap(start.model)?;
        let optimizer = optimizer.build().optimizer;
        let optimizer = match start.optimizer_state {
            Some(state) => sharded.load_state(optimizer, state)?,
            None => optimizer,
        };
        let_go(start.learner);
        Ok(Self {
            device: first_device(&model),
            sharded,
            table,
            model: Some(model),
            optimizer,
            sums: GradientsAccumulator::new(),
            settings: start.settings,
            no_sync,
        })
    }

    fn model(&self) -> &M {
        self.model.as_ref().expect("invariant: it is put back")
    }

    fn run(&self, pass: Pass<'_, M>) -> GradientsParams {
        let run = pass.run;
        match pass.counts {
            true => run(self.model()),
            false => self.sharded.without_counting(|| run(self.model())),
        }
    }
}

impl<M: LearnerModel> FullyShardedLearner<M> {
    /// Adds up the gradients of a pass, with those that wait if it reduces.
    fn add(&mut self, pass: Option<Pass<'_, M>>, reduces: bool) -> Result<()> {
        let gradients = match pass {
            Some(pass) if reduces => self.run(pass),
            Some(pass) => self.sharded.no_sync_collected(|| self.run(pass)),
            // Else all are reduced already.
            None if reduces && self.no_sync => self.sharded.reduce_waiting()?,
            None => return Ok(()),
        };
        self.sharded.check()?;
        let model = self.model.as_ref().expect("invariant: it is put back");
        self.sums.accumulate(model, gradients);
        Ok(())
    }
}

impl<M: LearnerModel> RankLearner<M> for FullyShardedLearner<M> {
    fn needs_equal_passes(&self) -> bool {
        true
    }

    fn accumulate(&mut self, pass: Option<Pass<'_, M>>) -> Result<()> {
        self.add(pass, !self.no_sync)
    }

    fn step(
        &mut self,
        learner: &mut Learner<M>,
        pass: Option<Pass<'_, M>>,
        active: usize,
    ) -> Result<()> {
        self.add(pass, true)?;
        let mut gradients = self.sums.grads();
        let model = self.model.take().expect("invariant: it is put back");
        if let Some(factor) = self
            .settings
            .rank_factor(active, self.sharded.group().size())
        {
            scale_gradients(&mut gradients, &model, factor);
        }
        if let Some(max_norm) = self.settings.max_grad_norm {
            (gradients, _) = self.sharded.clip_grad_norm(gradients, &model, max_norm)?;
        }
        let stepped = self.optimizer.step(learner.lr_current(), model, gradients);
        self.model = Some(stepped);
        Ok(())
    }

    fn valid(&self) -> Result<M> {
        broadcast_untrained(self.model().valid(), &self.table, self.sharded.group())
    }

    fn write_back(&self, learner: &mut Learner<M>, wanted: bool) -> Result<()> {
        let model = self.valid()?;
        let trained = self.sharded.gather_values(&model, wanted)?;
        if wanted {
            let specs = self.table.specs().iter();
            let untrained = specs.filter(|spec| !spec.trainable).map(|spec| spec.id);
            let mut values = ReadValues::of(&model, untrained);
            values.extend(trained);
            fill(learner, values, &self.device);
        }
        Ok(())
    }

    fn write_back_optimizer(&self, learner: &mut Learner<M>) -> Result<()> {
        if let Some(state) = self.sharded.gather_state(&self.optimizer)? {
            learner.load_optim(state);
        }
        Ok(())
    }

    /// Most of it is on other ranks.
    fn give_up(&self, _learner: &mut Learner<M>) {}

    fn let_go(&self, learner: &mut Learner<M>) {
        let_go(learner);
    }
}
