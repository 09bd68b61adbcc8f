//! A model in one of the stages.

use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Gradients, Int, Tensor};
use burn_dist::communicator::ReduceOp;
use burn_dist::data_parallel::{DataParallel, ParameterTable, parameter_hash};
use burn_dist::{DistError, ProcessGroup, Result};
use burn_zero::{FullyShard, FullySharded, ShardedOptimizer, StateBytes, ZeroStage};
use examples::gpt::Gpt;
use examples::workload::{self, batch, peak_rss_bytes};

use super::row::Row;

const SEED: u64 = 7;

enum Stage {
    Whole(DataParallel, ModuleOptimizer),
    Sharded(Box<ShardedOptimizer>),
    Fully(FullySharded, ModuleOptimizer),
}

pub(crate) struct Runner {
    number: u8,
    stage: Stage,
    model: Gpt,
    elements: usize,
}

/// Tokens and their targets.
pub(crate) type Batch = (Tensor<2, Int>, Tensor<2, Int>);

impl Runner {
    pub(crate) fn new(number: u8, group: &ProcessGroup, device: &Device) -> Result<Self> {
        device.seed(SEED);
        let model = workload::model(device);
        let table = ParameterTable::of_lazy(&model)?;
        let elements = table.specs().iter().map(|spec| spec.num_elements()).sum();
        let optimizer = AdamWConfig::new();
        let (stage, model) = match number {
            0 => {
                let (parallel, model) = DataParallel::wrap(model, group)?;
                (Stage::Whole(parallel, optimizer.init()), model)
            }
            3 => {
                let (sharded, model) = FullyShard::new(group).wrap(model)?;
                (Stage::Fully(sharded, optimizer.init()), model)
            }
            _ => {
                let (sharded, model) = ShardedOptimizer::wrap(model, optimizer.build(), group)?;
                (Stage::Sharded(Box::new(sharded)), model)
            }
        };
        Ok(Self {
            number,
            stage,
            model,
            elements,
        })
    }

    fn backward(&self, (tokens, targets): Batch) -> Gradients {
        self.model.loss(tokens, targets).backward()
    }

    pub(crate) fn step(mut self, batch: Batch) -> Result<Self> {
        const LR: f64 = 1e-4;
        let gradients = self.backward(batch);
        self.model = match &mut self.stage {
            Stage::Whole(parallel, optimizer) => {
                let gradients = parallel.sync(gradients, &self.model)?;
                optimizer.step(LR, self.model, gradients)
            }
            // One micro-step: stages 1 and 2 differ in what they keep between several.
            Stage::Sharded(sharded) => sharded.step(LR, self.model, gradients)?,
            Stage::Fully(sharded, optimizer) => {
                let gradients = sharded.gradients(gradients, &self.model)?;
                optimizer.step(LR, self.model, gradients)
            }
        };
        Ok(self)
    }

    /// Of the whole model. Collective in stage 3.
    pub(crate) fn hash(&self) -> String {
        parameter_hash(&self.model.clone().materialize())
    }

    fn optimizer_bytes(&self) -> u64 {
        let optimizer = match &self.stage {
            Stage::Whole(_, optimizer) | Stage::Fully(_, optimizer) => optimizer,
            Stage::Sharded(sharded) => sharded.optimizer(),
        };
        let record = optimizer.to_record().into_bytes();
        record.expect("invariant: a record in memory").len() as u64
    }

    fn parameter_bytes(&self) -> u64 {
        let elements = match &self.stage {
            Stage::Fully(sharded, _) => sharded.num_elements(),
            _ => self.elements,
        };
        (elements * size_of::<f32>()) as u64
    }

    /// Measures a few steps.
    pub(crate) fn memory(mut self, group: &ProcessGroup, device: &Device) -> Result<Row> {
        let rank = group.rank();
        let pool = group.communicator().pool().clone();
        for round in 0..2 {
            self = self.step(batch(round, rank, device))?;
        }
        pool.mark_peak();
        // In stages 1 and 2 the parameters themselves lie there.
        let idle = pool.used_bytes() as u64;
        let (before, gathers) = (group.traffic(), self.gathers());
        self = self.step(batch(2, rank, device))?;
        let gathers: Vec<u64> = self
            .gathers()
            .iter()
            .zip(gathers)
            .map(|(a, b)| a - b)
            .collect();
        let sent = (&group.traffic() - &before).total_sent();
        let moving = pool.peak_bytes() as u64 - idle;
        let (parameters, optimizer) = (self.parameter_bytes(), self.optimizer_bytes());
        let (gradients, formula) = self.gradient_bytes(batch(3, rank, device), group)?;
        let most = |value: u64| -> Result<u64> {
            Ok(group.all_reduce_values(vec![value], ReduceOp::Max)?[0])
        };
        let row = Row {
            stage: self.number,
            ranks: group.size(),
            state_bytes: most(parameters + gradients + optimizer)?,
            formula_bytes: formula as u64,
            peak_bytes: most(parameters + optimizer + moving.max(gradients))?,
            rss_bytes: most(peak_rss_bytes())?,
            traffic_bytes: most(sent)?,
            traffic_formula: self.traffic_formula(&gathers, group) as u64,
            step_ratio_to_stage0: 0.0,
            step_ratio_recomputing: None,
        };
        check(&row)?;
        Ok(row)
    }

    /// What the optimizer gets of gradients, and the formula for all state.
    fn gradient_bytes(&mut self, batch: Batch, group: &ProcessGroup) -> Result<(u64, f64)> {
        let pool = group.communicator().pool();
        let idle = pool.used_bytes();
        let gradients = self.backward(batch);
        let n = group.size();
        let formula = |stage| StateBytes::ADAM_F32.per_rank(stage, self.elements as f64, n);
        match &mut self.stage {
            Stage::Whole(parallel, _) => {
                let gradients = parallel.sync(gradients, &self.model)?;
                let bytes = elements_of(&gradients, &self.model);
                Ok((bytes, formula(ZeroStage::Nothing)))
            }
            Stage::Sharded(sharded) => {
                sharded.accumulate(gradients)?;
                let held = (pool.used_bytes() - idle) as u64;
                // A single rank's gradients never pass through the pool.
                let held = if n == 1 { self.parameter_bytes() } else { held };
                // Stage 1 lets go of whole gradients too: only its micro-steps keep them.
                Ok((held, formula(ZeroStage::Gradients)))
            }
            Stage::Fully(sharded, _) => {
                let gradients = sharded.gradients(gradients, &self.model)?;
                let bytes = elements_of(&gradients, &self.model);
                Ok((bytes, formula(ZeroStage::Parameters)))
            }
        }
    }

    /// How often each unit was gathered so far.
    fn gathers(&self) -> Vec<u64> {
        match &self.stage {
            Stage::Fully(sharded, _) => sharded.gathers(),
            _ => Vec::new(),
        }
    }

    /// Bytes that a rank sends in a step: to reduce gradients, to gather parameters, once in the forward
    /// pass and again where the backward pass asks for them. It does not for the unit that the forward
    /// pass ends with, nor for embeddings.
    fn traffic_formula(&self, gathers: &[u64], group: &ProcessGroup) -> f64 {
        let n = group.size() as f64;
        let gathered = match &self.stage {
            Stage::Whole(..) | Stage::Sharded(_) => self.elements,
            Stage::Fully(sharded, _) => {
                let layout = sharded.layout();
                let units = (0..layout.num_units()).zip(gathers);
                units
                    .map(|(unit, &count)| layout.unit_len(unit) * count as usize)
                    .sum()
            }
        };
        assert!(
            gathered <= 2 * self.elements,
            "no unit is gathered three times"
        );
        ((self.elements + gathered) * size_of::<f32>()) as f64 * (n - 1.0) / n
    }
}

fn elements_of(gradients: &GradientsParams, model: &Gpt) -> u64 {
    use burn::module::{ModuleVisitor, Param};
    struct Count<'a>(&'a GradientsParams, usize);
    impl ModuleVisitor for Count<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.get::<D>(param.id) {
                self.1 += gradient.shape().num_elements();
            }
        }
    }
    let mut count = Count(gradients, 0);
    model.visit(&mut count);
    (count.1 * size_of::<f32>()) as u64
}

/// What is measured must be what is promised.
fn check(row: &Row) -> Result<()> {
    let near = |found: u64, formula: u64| {
        let slack = formula / 100 + 4096;
        found.abs_diff(formula) <= slack
    };
    if near(row.state_bytes, row.formula_bytes) && near(row.traffic_bytes, row.traffic_formula) {
        return Ok(());
    }
    Err(DistError::config(
        format!("more than 1 % from the formula: {row:?}"),
        "this is a bug: please report it",
    ))
}
