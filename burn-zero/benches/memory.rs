//! What the stages of ZeRO keep, send and cost: bytes of model state beside the formula, the most bytes at
//! once, resident memory, bytes sent beside the formula, and the time of a step beside that of stage 0.
//!
//! `cargo bench -p burn-zero --bench memory [-- --ranks 1,2,4,8 --rounds N --json FILE]`
//!
//! The model is a GPT of 6.87 million parameters of Burn's own layers, trained with AdamW in f32. Memory is
//! measured in processes that hold one stage only, on a device that recomputes views (see
//! `FullyShard::reshard_after_forward`). Time is measured in processes that hold all stages: in every round
//! each takes one step, so that noise meets all alike, on the default device and, for stage 3, on the one
//! that recomputes, beside a stage 0 that does so too. Ratios are medians over rounds. Every run verifies
//! that all stages hold the same bits.

#[path = "memory/row.rs"]
mod row;
#[path = "memory/runner.rs"]
mod runner;

use std::path::{Path, PathBuf};
use std::time::Instant;

use burn::tensor::Device;
use burn_dist::communicator::ReduceOp;
use burn_dist::{DistError, ProcessGroup, Result, World};
use clap::Parser;
use examples::workload::{batch, median, started, write_found, write_json};

use row::{Row, print};
use runner::Runner;

/// Stages that are measured.
const STAGES: [u8; 4] = [0, 1, 2, 3];

#[derive(Debug, Clone, Parser)]
struct Arguments {
    /// Numbers of ranks
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    ranks: Vec<usize>,
    /// Rounds that are timed on up to 2 ranks; a third of them on more
    #[arg(long, default_value_t = 12)]
    rounds: usize,
    /// Write the rows as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// What a started process measures: a stage's memory, or with `time` the steps of all
    #[arg(long, hide = true)]
    role: Option<String>,
    /// Where a started process writes what it found
    #[arg(long, hide = true)]
    found: Option<PathBuf>,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let (Some(role), Some(found)) = (&arguments.role, &arguments.found) {
        return play(role, found, &arguments);
    }
    let mut rows = Vec::new();
    for &ranks in &arguments.ranks {
        let ratios: Vec<f64> = measured(ranks, "time", &arguments)?;
        for stage in STAGES {
            let mut row: Row = measured(ranks, &stage.to_string(), &arguments)?;
            row.step_ratio_to_stage0 = ratios[usize::from(stage)];
            row.step_ratio_recomputing = (stage == 3).then(|| ratios[STAGES.len()]);
            print(&row);
            rows.push(row);
        }
    }
    match &arguments.json {
        Some(path) => write_json(path, &rows),
        None => Ok(()),
    }
}

/// What `ranks` processes of this program find.
fn measured<T: serde::de::DeserializeOwned>(
    ranks: usize,
    role: &str,
    arguments: &Arguments,
) -> Result<T> {
    let rounds = match ranks {
        0..=2 => arguments.rounds,
        _ => arguments.rounds.div_ceil(3),
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = (threads / ranks).max(1);
    started(
        ranks,
        threads,
        &["--role", role, "--rounds", &rounds.to_string()],
    )
}

/// A started process.
fn play(role: &str, found: &Path, arguments: &Arguments) -> Result<()> {
    let world = World::from_env()?;
    let group = world.whole()?;
    let rank = group.index();
    match role.parse::<u8>() {
        Ok(stage) => {
            let device = Device::flex().autodiff().gradient_checkpointing();
            let row = Runner::new(stage, &group, &device)?.memory(&group, &device)?;
            write_found(rank, found, &row)?;
        }
        Err(_) => write_found(rank, found, &time(&group, arguments.rounds)?)?,
    }
    // No rank leaves before the first has written.
    group.barrier()
}

/// Median ratios of a step of each stage to one of stage 0; last, of stage 3 to stage 0 on a device that
/// recomputes.
fn time(group: &ProcessGroup, rounds: usize) -> Result<Vec<f64>> {
    let plain = Device::flex().autodiff();
    let recomputing = Device::flex().autodiff().gradient_checkpointing();
    let mut runners = Vec::new();
    for (stage, device) in STAGES
        .iter()
        .map(|&stage| (stage, &plain))
        .chain([(0, &recomputing), (3, &recomputing)])
    {
        runners.push((Runner::new(stage, group, device)?, device));
    }
    let mut seconds = vec![Vec::new(); runners.len()];
    // Two rounds to warm up: stage 3 learns the order of its units in the first.
    for round in 0..rounds + 2 {
        let mut stepped = Vec::new();
        for (number, (runner, device)) in runners.into_iter().enumerate() {
            group.barrier()?;
            let start = Instant::now();
            let runner = runner.step(batch(round, group.rank(), device))?;
            let own = start.elapsed().as_secs_f64();
            let slowest = group.all_reduce_values(vec![own], ReduceOp::Max)?[0];
            if round >= 2 {
                seconds[number].push(slowest);
            }
            stepped.push((runner, device));
        }
        runners = stepped;
    }
    let hashes: Vec<String> = runners.iter().map(|(runner, _)| runner.hash()).collect();
    if hashes.iter().any(|hash| *hash != hashes[0]) {
        return Err(DistError::config(
            format!("rank {}: the stages do not agree: {hashes:?}", group.rank()),
            "this is a bug: please report it",
        ));
    }
    let ratio = |number: usize, base: usize| {
        let pairs = seconds[number].iter().zip(&seconds[base]);
        median(pairs.map(|(step, base)| step / base).collect())
    };
    let mut ratios: Vec<f64> = (0..STAGES.len()).map(|number| ratio(number, 0)).collect();
    ratios.push(ratio(STAGES.len() + 1, STAGES.len()));
    if group.rank() == 0 {
        let medians: Vec<String> = seconds
            .iter()
            .map(|seconds| format!("{:.3}", median(seconds.clone())))
            .collect();
        println!(
            "{} ranks, seconds of a step, stages 0 to 3, and 0 and 3 recomputing: {}",
            group.size(),
            medians.join(" ")
        );
    }
    Ok(ratios)
}
