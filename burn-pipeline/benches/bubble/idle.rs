//! The share of time in which a rank has nothing to do.

use std::time::SystemTime;

use burn_dist::{ProcessGroup, Result, World};
use burn_pipeline::{
    ActionKind, ActionSpan, PipelineStep, Schedule, SchedulePlan, StageCosts, simulate,
};
use examples::gpt::GptConfig;
use examples::workload::median;
use serde::{Deserialize, Serialize};

use super::stages::{deal, micro_batches};

/// A schedule with a number of micro-batches; shares of the whole time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    schedule: String,
    /// On all ranks together.
    stages: usize,
    micro_batches: usize,
    measured: f64,
    theory: f64,
    /// With the measured times of each stage.
    simulated: f64,
}

pub(crate) fn print_head() {
    println!("schedule       stages  micro-batches  bubble  by formula  simulated");
}

pub(crate) fn print(row: &Row) {
    println!(
        "{:<13}  {:>6}  {:>13}  {:>6.3}  {:>10.3}  {:>9.3}",
        row.schedule, row.stages, row.micro_batches, row.measured, row.theory, row.simulated
    );
}

/// Forward, backward's input part and weights' part take one unit each. Idle are p - 1 forward and backward
/// passes of a chunk; with a backward pass in parts, what the weights' parts do not fill.
fn theory(schedule: &Schedule, ranks: usize, micro_batches: usize) -> f64 {
    let (p, m) = (ranks as f64, micro_batches as f64);
    let (busy, idle) = match schedule {
        Schedule::Interleaved(chunks) => (m * *chunks as f64, p - 1.0),
        Schedule::ZeroBubbleH1 => (3.0 * m, p - 1.0),
        _ => (m, p - 1.0),
    };
    idle / (busy + idle)
}

/// Equal blocks: the embedding and the head are small beside them.
fn config() -> GptConfig {
    GptConfig::new()
        .with_layers(8)
        .with_hidden(256)
        .with_heads(8)
}

pub(crate) fn measure(world: &World, count: usize, rounds: usize) -> Result<Vec<Row>> {
    let group = world.whole()?;
    let config = config();
    let schedules = [
        Schedule::GPipe,
        Schedule::OneFOneB,
        Schedule::Interleaved(2),
        Schedule::ZeroBubbleH1,
    ];
    let mut runs = Vec::new();
    for schedule in &schedules {
        let (runtime, stages) = deal(world, &config, schedule, count, &config.part_sizes())?;
        let times = Times::of(runtime.plan());
        runs.push((runtime, stages, Vec::new(), times));
    }
    for round in 0..=rounds {
        let batches = micro_batches(&config, count, 1, round);
        for (runtime, stages, bubbles, times) in &mut runs {
            group.barrier()?;
            let step = runtime.step(stages, &batches, &vec![1.0; count])?;
            // The first round warms up.
            if round > 0 {
                bubbles.push(bubble(&step, &group)?);
                times.add(&step);
            }
        }
    }
    let mut rows = Vec::new();
    for (schedule, (runtime, _, bubbles, times)) in schedules.iter().zip(runs) {
        let plan = schedule.plan(group.size(), count)?;
        rows.push(Row {
            schedule: schedule.to_string(),
            stages: runtime.plan().num_stages(),
            micro_batches: count,
            measured: median(bubbles),
            theory: theory(schedule, group.size(), count),
            simulated: simulate(&plan, &times.costs(&group)?)?.bubble(),
        });
    }
    Ok(rows)
}

fn seconds(time: SystemTime) -> f64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.expect("invariant: later than 1970").as_secs_f64()
}

fn passes(step: &PipelineStep) -> impl Iterator<Item = &ActionSpan> {
    let spans = step.spans.iter();
    spans.filter(|span| span.action.kind.is_compute())
}

fn length(span: &ActionSpan) -> f64 {
    seconds(span.end) - seconds(span.start)
}

/// Of all ranks together. Ranks are on one host, whose clock they share.
fn bubble(step: &PipelineStep, group: &ProcessGroup) -> Result<f64> {
    let busy: f64 = passes(step).map(length).sum();
    let start = passes(step).map(|span| seconds(span.start));
    let end = passes(step).map(|span| seconds(span.end));
    let own = vec![
        busy,
        start.fold(f64::INFINITY, f64::min),
        end.fold(0.0, f64::max),
    ];
    let all = group.all_gather_values(own)?;
    let busy: f64 = all.iter().map(|own| own[0]).sum();
    let start = all.iter().map(|own| own[1]).fold(f64::INFINITY, f64::min);
    let end = all.iter().map(|own| own[2]).fold(0.0, f64::max);
    Ok(1.0 - busy / ((end - start) * all.len() as f64))
}

/// Lengths of the passes of each stage, those of other ranks empty.
struct Times([Vec<Vec<f64>>; 4]);

const KINDS: [ActionKind; 4] = [
    ActionKind::Forward,
    ActionKind::Backward,
    ActionKind::BackwardInput,
    ActionKind::BackwardWeight,
];

impl Times {
    fn of(plan: &SchedulePlan) -> Self {
        Self(KINDS.map(|_| vec![Vec::new(); plan.num_stages()]))
    }

    fn add(&mut self, step: &PipelineStep) {
        for span in passes(step) {
            let kind = KINDS.iter().position(|kind| *kind == span.action.kind);
            let kind = kind.expect("invariant: passes are of these kinds");
            self.0[kind][span.action.stage].push(length(span));
        }
    }

    /// Medians, of all ranks' stages. A whole backward pass is its input part, with nothing left for weights.
    fn costs(self, group: &ProcessGroup) -> Result<Vec<StageCosts>> {
        let medians = self.0.map(|stages| {
            let middle = |values: Vec<f64>| match values.is_empty() {
                true => 0.0,
                false => median(values),
            };
            stages.into_iter().map(middle).collect::<Vec<f64>>()
        });
        let mut all = Vec::new();
        for own in medians {
            let ranks = group.all_gather_values(own)?;
            let stages = 0..ranks[0].len();
            let sums = stages.map(|stage| ranks.iter().map(|rank| rank[stage]).sum::<f64>());
            all.push(sums.collect::<Vec<f64>>());
        }
        let costs = (0..all[0].len()).map(|stage| StageCosts {
            forward: all[0][stage],
            backward_input: all[1][stage] + all[2][stage],
            backward_weight: all[3][stage],
            transfer: 0.0,
        });
        Ok(costs.collect())
    }
}
