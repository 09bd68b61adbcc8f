//! The step of a pipeline beside that of one rank.

use std::time::Instant;

use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Int, Tensor};
use burn_dist::communicator::ReduceOp;
use burn_dist::data_parallel::{ParameterTable, RankOrderAccumulator};
use burn_dist::{DistError, ProcessGroup, Result, World};
use burn_pipeline::{PipelineRuntime, measure_blocks};
use examples::gpt::{Gpt, GptConfig, TokenBatch};
use examples::workload::{config, median};
use serde::{Deserialize, Serialize};

use super::stages::{Stage, deal, device, micro_batches, schedules, stages};

const MICRO_BATCHES: usize = 8;
/// Sequences in each.
const SEQUENCES: usize = 2;
const LR: f64 = 1e-3;

/// A schedule on two ranks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    schedule: String,
    seconds: f64,
    /// One rank, the batch in one pass.
    single_seconds: f64,
    /// One rank, in micro-batches.
    accumulating_seconds: f64,
    over_single: f64,
    over_accumulating: f64,
    /// What a pass takes while the other rank works too, over what it takes alone.
    beside_each_other: f64,
    /// Blocks of each stage.
    cut: Vec<usize>,
}

pub(crate) fn print(rows: &[Row]) {
    println!(
        "\nstep, batch 16 in 8     two ranks  one rank, one pass   one rank, in 8  blocks of stages"
    );
    for row in rows {
        println!(
            "{:<22}  {:>7.3} s  {:>7.3} s  {:.3}x  {:>7.3} s  {:.3}x  {:?}",
            row.schedule,
            row.seconds,
            row.single_seconds,
            row.over_single,
            row.accumulating_seconds,
            row.over_accumulating,
            row.cut
        );
    }
    let Some(row) = rows.first() else { return };
    let (m, p) = (MICRO_BATCHES as f64, 2.0);
    let floor = (m + p - 1.0) / (m * p);
    println!(
        "floor (m+p-1)/(mp) = {floor:.4}; two ranks that do not talk take {:.3} of one's time each: {:.3}",
        row.beside_each_other,
        floor * row.beside_each_other
    );
}

/// One rank.
struct Alone {
    model: Gpt,
    optimizer: ModuleOptimizer,
}

impl Alone {
    fn new(config: &GptConfig) -> Result<Self> {
        device().seed(42);
        let model = config.init(&device());
        // Drawn now.
        ParameterTable::of(&model)?;
        Ok(Self {
            model,
            optimizer: AdamWConfig::new().init(),
        })
    }

    fn one_pass(&mut self, batches: &[TokenBatch]) {
        let cat =
            |f: fn(&TokenBatch) -> Tensor<2, Int>| Tensor::cat(batches.iter().map(f).collect(), 0);
        let (tokens, targets) = (cat(|b| b.tokens.clone()), cat(|b| b.targets.clone()));
        let loss = self.model.loss(tokens, targets);
        // Trainers look at it.
        let _ = loss.clone().into_scalar::<f32>();
        let gradients = GradientsParams::from_grads(loss.backward(), &self.model);
        self.step(gradients);
    }

    /// Bits of each micro-batch's loss.
    fn accumulating(&mut self, batches: &[TokenBatch]) -> Vec<u64> {
        let mut sums = RankOrderAccumulator::new();
        let mut losses = Vec::new();
        for batch in batches {
            let loss = self.model.loss(batch.tokens.clone(), batch.targets.clone());
            losses.push(f64::from(loss.clone().into_scalar::<f32>()).to_bits());
            let gradients = GradientsParams::from_grads(loss.backward(), &self.model);
            sums.add(&self.model, gradients);
        }
        sums.end_rank(&self.model);
        let gradients = sums.mean(&self.model);
        self.step(gradients);
        losses
    }

    fn step(&mut self, gradients: GradientsParams) {
        self.model = self.optimizer.step(LR, self.model.clone(), gradients);
    }
}

/// A rank of a pipeline.
struct Piped {
    runtime: PipelineRuntime,
    stages: Vec<Stage>,
    optimizers: Vec<ModuleOptimizer>,
}

impl Piped {
    /// Bits of each micro-batch's loss, on the last stage's rank.
    fn step(&mut self, batches: &[TokenBatch]) -> Result<Vec<u64>> {
        let step = self
            .runtime
            .step(&self.stages, batches, &[1.0; MICRO_BATCHES])?;
        let losses = step.losses.clone().unwrap_or_default();
        let gradients = step.mean_gradients(&self.stages);
        let stages = std::mem::take(&mut self.stages).into_iter();
        let stages = stages.zip(gradients).zip(&mut self.optimizers);
        self.stages = stages
            .map(|((stage, gradients), optimizer)| optimizer.step(LR, stage, gradients))
            .collect();
        Ok(losses.into_iter().map(f64::to_bits).collect())
    }
}

/// Seconds of the slowest rank.
fn timed<T>(group: &ProcessGroup, f: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    group.barrier()?;
    let start = Instant::now();
    let result = f()?;
    let own = start.elapsed().as_secs_f64();
    let slowest = group.all_reduce_values(vec![own], ReduceOp::Max)?[0];
    Ok((result, slowest))
}

pub(crate) fn measure(world: &World, rounds: usize) -> Result<Vec<Row>> {
    let group = world.whole()?;
    let (config, schedules) = (config(), schedules());
    // Each rank measures, so that both cores are busy; the first one's figures count.
    let whole = 0..config.part_sizes().len();
    let model = stages(&config, &[whole], &[0])?.remove(0);
    let batch = micro_batches(&config, 1, SEQUENCES, 0).remove(0);
    group.barrier()?;
    let costs = group
        .all_gather_values(measure_blocks(&model, &batch, 8)?)?
        .swap_remove(0);
    drop(model);
    let mut piped = Vec::new();
    for schedule in &schedules {
        let (runtime, stages) = deal(world, &config, schedule, MICRO_BATCHES, &costs)?;
        piped.push(Piped {
            runtime,
            optimizers: stages.iter().map(|_| AdamWConfig::new().init()).collect(),
            stages,
        });
    }
    let mut alone = [Alone::new(&config)?, Alone::new(&config)?];
    let is_first = group.index() == 0;
    let mut seconds = vec![Vec::new(); schedules.len() + 3];
    for round in 0..=rounds {
        let batches = micro_batches(&config, MICRO_BATCHES, SEQUENCES, round);
        let [single, accumulating] = &mut alone;
        let ((), one_pass) = timed(&group, || {
            if is_first {
                single.one_pass(&batches);
            }
            Ok(())
        })?;
        let (right, in_parts) = timed(&group, || match is_first {
            true => Ok(accumulating.accumulating(&batches)),
            false => Ok(vec![0; MICRO_BATCHES]),
        })?;
        let right = group.all_gather_values(right)?.swap_remove(0);
        // The model that accumulates stays what the pipelines' are.
        let (_, together) = timed(&group, || Ok(single.accumulating(&batches)))?;
        let mut of_round = vec![one_pass, in_parts, together];
        for (schedule, piped) in schedules.iter().zip(&mut piped) {
            let (losses, time) = timed(&group, || piped.step(&batches))?;
            if !losses.is_empty() && losses != right {
                return Err(DistError::config(
                    format!("{schedule}, round {round}: other losses than one rank's"),
                    "this is a bug",
                ));
            }
            of_round.push(time);
        }
        // The first round warms up.
        if round > 0 {
            for (all, time) in seconds.iter_mut().zip(of_round) {
                all.push(time);
            }
        }
    }
    let mut rows = Vec::new();
    for (number, schedule) in schedules.iter().enumerate() {
        let own = &seconds[number + 3];
        let ratio = |a: &[f64], b: &[f64]| median(a.iter().zip(b).map(|(a, b)| a / b).collect());
        let cut = super::stages::cut(&costs, schedule, group.size())?;
        rows.push(Row {
            schedule: schedule.to_string(),
            seconds: median(own.clone()),
            single_seconds: median(seconds[0].clone()),
            accumulating_seconds: median(seconds[1].clone()),
            over_single: ratio(own, &seconds[0]),
            over_accumulating: ratio(own, &seconds[1]),
            beside_each_other: ratio(&seconds[2], &seconds[1]),
            cut: cut.into_iter().map(|blocks| blocks.len()).collect(),
        });
    }
    Ok(rows)
}
