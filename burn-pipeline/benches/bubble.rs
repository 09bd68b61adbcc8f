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

use burn_dist::{DistError, OutputStyle, ProcessLaunch, Result, World, launch_processes};
use clap::Parser;
use peak_alloc::PeakAlloc;

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
        let role = format!("idle-{micro_batches}");
        let found: Vec<idle::Row> = started(&role, &arguments)?;
        found.iter().for_each(idle::print);
        rows.extend(found);
    }
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&rows).expect("invariant: plain data");
        std::fs::write(path, text).map_err(|error| file(&path.display().to_string(), &error))?;
    }
    let speed: Vec<speed::Row> = started("speed", &arguments)?;
    speed::print(&speed);
    let memory: Vec<memory::Row> = started("memory", &arguments)?;
    memory::print(&memory);
    match memory.iter().all(memory::Row::is_right) {
        true => Ok(()),
        false => Err(DistError::config(
            "a rank held more than its state and its live activations",
            "this is a bug",
        )),
    }
}

/// Starts the ranks as processes of this program and reads what the first of them found.
fn started<T: serde::de::DeserializeOwned>(role: &str, arguments: &Arguments) -> Result<T> {
    let folder = tempfile::tempdir().map_err(|error| file("a temporary folder", &error))?;
    let found = folder.path().join("found.json");
    let program = std::env::current_exe().map_err(|error| file("this program", &error))?;
    let rounds = arguments.rounds.to_string();
    let launch = ProcessLaunch::new(program)
        .args(["--role", role, "--rounds", &rounds, "--found"])
        .arg(&found)
        .env("RAYON_NUM_THREADS", "1")
        .output(OutputStyle::RankZeroUntouched)
        .ranks(RANKS);
    let report = launch_processes(&launch)?;
    if report.code != 0 {
        return Err(DistError::config(
            format!("measuring {role} ended with code {}", report.code),
            "its messages are above",
        ));
    }
    let text = std::fs::read_to_string(&found).map_err(|error| file("the result", &error))?;
    serde_json::from_str(&text).map_err(|error| file("the result", &error))
}

fn file(path: &str, problem: &dyn std::fmt::Display) -> DistError {
    DistError::File {
        path: path.into(),
        problem: problem.to_string(),
    }
}

/// A started process.
fn play(role: &str, found: &Path, arguments: &Arguments) -> Result<()> {
    let world = World::from_env()?;
    let rounds = arguments.rounds;
    let text = match role.strip_prefix("idle-").map(str::parse) {
        Some(Ok(micro_batches)) => {
            serde_json::to_string(&idle::measure(&world, micro_batches, rounds)?)
        }
        _ if role == "speed" => serde_json::to_string(&speed::measure(&world, rounds)?),
        _ => serde_json::to_string(&memory::measure(&world)?),
    };
    if world.rank() == 0 {
        let text = text.expect("invariant: plain data");
        std::fs::write(found, text).map_err(|error| file("the result", &error))?;
    }
    // No rank leaves before the first has written.
    world.whole()?.barrier()
}
