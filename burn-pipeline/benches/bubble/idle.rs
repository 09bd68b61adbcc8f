//! The share of time in which a rank has nothing to do.

use burn_dist::{ProcessGroup, Result, World};
use burn_pipeline::pictures::{RankTrace, StepTrace};
use burn_pipeline::{
    ActionKind, ActionSpan, PipelineStep, Schedule, SchedulePlan, StageCosts, simulate,
};
use examples::workload::median;
use serde::{Deserialize, Serialize};

use super::stages::{deal, equal_blocks, micro_batches, schedules};

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

pub(crate) fn measure(world: &World, count: usize, rounds: usize) -> Result<Vec<Row>> {
    let group = world.whole()?;
    let (config, schedules) = (equal_blocks(), schedules());
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
                bubbles.extend(bubble(&step, &group)?);
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
            // The other ranks' rows are not looked at.
            measured: if bubbles.is_empty() {
                0.0
            } else {
                median(bubbles)
            },
            theory: theory(schedule, group.size(), count),
            simulated: simulate(&plan, &times.costs(&group)?)?.bubble(),
        });
    }
    Ok(rows)
}

fn passes(step: &PipelineStep) -> impl Iterator<Item = &ActionSpan> {
    let spans = step.spans.iter();
    spans.filter(|span| span.action.kind.is_compute())
}

fn length(span: &ActionSpan) -> f64 {
    let length = span.end.duration_since(span.start);
    length.map_or(0.0, |length| length.as_secs_f64())
}

/// Of all ranks together, on the first one.
fn bubble(step: &PipelineStep, group: &ProcessGroup) -> Result<Option<f64>> {
    let mut own = RankTrace::new(group.rank());
    own.add_step(&step.spans);
    let trace = StepTrace::gather(group, own)?;
    let chart = trace.and_then(|trace| trace.chart("a step"));
    Ok(chart.map(|chart| chart.bubble()))
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
