//! How long stages are idle, and what a pipeline costs beside one rank.
//!
//! `cargo bench -p burn-pipeline --bench bubble [-- --micro-batches 2,4,8,16 --rounds N --json FILE]`
//!
//! Two ranks, processes of one thread each. First the bubble: a GPT of eight equal blocks, micro-batches of one
//! sequence; the share of both ranks' time from the first action to the last in which no pass runs, beside
//! the formula and beside the simulator with the stages' measured times; medians over rounds. Then the step
//! beside that of one rank: a GPT of 6.87 million parameters, global batch 16 in 8 micro-batches, AdamW
//! included; in every round one rank takes its step alone, in one pass and in micro-batches, then both take
//! theirs with each schedule. Every run verifies that each schedule's losses are those of one rank bit for
//! bit, step after step. Then memory: bytes of model state, and the most bytes at once in a step, counted at
//! the allocator, beside what one micro-batch keeps.

#[path = "bubble/idle.rs"]
mod idle;
#[path = "bubble/memory.rs"]
mod memory;
#[path = "bubble/speed.rs"]
mod speed;
#[path = "bubble/stages.rs"]
mod stages;

use std::path::{Path, PathBuf};

use burn_dist::{DistError, Result, World};
use clap::Parser;
use examples::workload::{started, write_found, write_json};
use peak_alloc::PeakAlloc;
use serde::de::DeserializeOwned;

#[derive(Debug, Clone, Parser)]
struct Arguments {
    /// Numbers of micro-batches
    #[arg(long, value_delimiter = ',', default_value = "2,4,8,16")]
    micro_batches: Vec<usize>,
    /// Rounds that are measured
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Write the rows of the bubble as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// What a started process measures
    #[arg(long, hide = true)]
    role: Option<String>,
    /// Where a started process writes what it found
    #[arg(long, hide = true)]
    found: Option<PathBuf>,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

const RANKS: usize = 2;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let (Some(role), Some(found)) = (&arguments.role, &arguments.found) {
        return play(role, found, &arguments);
    }
    let mut rows: Vec<idle::Row> = Vec::new();
    idle::print_head();
    for &micro_batches in &arguments.micro_batches {
        let found: Vec<idle::Row> = measured(&format!("idle-{micro_batches}"), &arguments)?;
        found.iter().for_each(idle::print);
        rows.extend(found);
    }
    if let Some(path) = &arguments.json {
        write_json(path, &rows)?;
    }
    let speed: Vec<speed::Row> = measured("speed", &arguments)?;
    speed::print(&speed);
    let memory: Vec<memory::Row> = measured("memory", &arguments)?;
    memory::print(&memory);
    match memory.iter().all(memory::Row::is_right) {
        true => Ok(()),
        false => Err(DistError::config(
            "a rank held more than its state and its live activations",
            "this is a bug",
        )),
    }
}

/// A started process.
fn play(role: &str, found: &Path, arguments: &Arguments) -> Result<()> {
    let world = World::from_env()?;
    let (rank, rounds) = (world.rank(), arguments.rounds);
    match role.strip_prefix("idle-").map(str::parse) {
        Some(Ok(count)) => write_found(rank, found, &idle::measure(&world, count, rounds)?)?,
        _ if role == "speed" => write_found(rank, found, &speed::measure(&world, rounds)?)?,
        _ => write_found(rank, found, &memory::measure(&world)?)?,
    }
    // No rank leaves before the first has written.
    world.whole()?.barrier()
}

/// What the ranks find as processes of this program.
fn measured<T: DeserializeOwned>(role: &str, arguments: &Arguments) -> Result<T> {
    let rounds = arguments.rounds.to_string();
    started(RANKS, 1, &["--role", role, "--rounds", &rounds])
}
