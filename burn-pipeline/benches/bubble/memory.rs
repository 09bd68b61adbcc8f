//! What a rank of a pipeline holds.

use burn::module::Module;
use burn::tensor::Tensor;
use burn_dist::{ProcessGroup, Result, World};
use burn_pipeline::{PipelineStage, Schedule, StageCosts, simulate};
use examples::gpt::{GptConfig, TokenBatch};
use serde::{Deserialize, Serialize};

use super::MEMORY;
use super::stages::{Stage, deal, device, equal_blocks, micro_batches};

const MICRO_BATCHES: usize = 8;
const SEQUENCES: usize = 2;

/// A schedule on one rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    schedule: String,
    rank: usize,
    /// Parameters, gradients and two moments, f32.
    state: u64,
    whole_state: u64,
    /// Most micro-batches at once.
    live: usize,
    /// What one keeps between its passes.
    kept: u64,
    /// The most at once in a step besides parameters and moments.
    peak: u64,
    gradients: u64,
}

impl Row {
    /// Gradients and the live activations, with 5 % for what a pass needs while it runs.
    fn bound(&self) -> u64 {
        (self.gradients + self.live as u64 * self.kept) * 21 / 20
    }

    /// Whether it is half the state and the schedule's activations; the ends of the model are not quite of
    /// one size.
    pub(crate) fn is_right(&self) -> bool {
        self.peak <= self.bound() && self.state as f64 <= 0.51 * self.whole_state as f64
    }
}

pub(crate) fn print(rows: &[Row]) {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "\nmemory, MiB       rank  state  of whole  live  kept by each  most in a step  bound"
    );
    for row in rows {
        println!(
            "{:<16}  {:>4}  {:>5.1}  {:>8.3}  {:>4}  {:>12.2}  {:>14.1}  {:>5.1}",
            row.schedule,
            row.rank,
            mib(row.state),
            row.state as f64 / row.whole_state as f64,
            row.live,
            mib(row.kept),
            mib(row.peak),
            mib(row.bound()),
        );
    }
}

/// What a forward pass keeps, with its output.
fn kept(stages: &[Stage], batch: &TokenBatch, config: &GptConfig) -> Result<u64> {
    let x = Tensor::<3>::ones([SEQUENCES, config.seq, config.hidden], &device());
    let before = MEMORY.current_usage();
    let mut outputs = Vec::new();
    for stage in stages {
        let mut input = vec![x.clone().require_grad().into()];
        for block in stage.blocks() {
            input = stage.forward_block(block, input, batch)?;
        }
        outputs.push(input);
    }
    let kept = MEMORY.current_usage().saturating_sub(before);
    drop(outputs);
    Ok(kept as u64)
}

fn gathered(row: Row, group: &ProcessGroup) -> Result<Vec<Row>> {
    let text = serde_json::to_string(&row).expect("invariant: plain data");
    let texts = group.all_gather_text(&text)?;
    let rows = texts.iter().map(|text| serde_json::from_str(text));
    Ok(rows
        .collect::<Result<_, _>>()
        .expect("invariant: our own JSON"))
}

pub(crate) fn measure(world: &World) -> Result<Vec<Row>> {
    let group = world.whole()?;
    let config = equal_blocks();
    let whole: f64 = config.part_sizes().iter().sum();
    let mut rows = Vec::new();
    for schedule in [Schedule::GPipe, Schedule::OneFOneB, Schedule::ZeroBubbleH1] {
        let (mut runtime, stages) = deal(
            world,
            &config,
            &schedule,
            MICRO_BATCHES,
            &config.part_sizes(),
        )?;
        let batches = micro_batches(&config, MICRO_BATCHES, SEQUENCES, 0);
        let weights = [1.0; MICRO_BATCHES];
        // Pools grow to what they need.
        drop(runtime.step(&stages, &batches, &weights)?);
        let before = MEMORY.current_usage();
        MEMORY.reset_peak_usage();
        drop(runtime.step(&stages, &batches, &weights)?);
        let peak = MEMORY.peak_usage().saturating_sub(before);
        // Last, since a graph without a backward pass goes when the next one begins.
        let kept = kept(&stages, &batches[0], &config)?;
        let parameters: usize = stages.iter().map(Module::num_params).sum();
        let plan = schedule.plan(group.size(), MICRO_BATCHES)?;
        let live = simulate(&plan, &StageCosts::units(plan.num_stages()))?.peak_live;
        let row = Row {
            schedule: schedule.to_string(),
            rank: group.index(),
            state: 16 * parameters as u64,
            whole_state: 16 * whole as u64,
            live: live[group.index()],
            kept,
            peak: peak as u64,
            gradients: 4 * parameters as u64,
        };
        rows.extend(gathered(row, &group)?);
    }
    Ok(rows)
}
