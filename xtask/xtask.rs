//! Tasks of this repository.
//!
//! `cargo xtask gpu --out DIR`: everything that is checked on a GPU, built here, into one folder. On a machine with a GPU
//! and no toolchain `DIR/run` runs it and writes a report.

#[path = "gpu_bundle.rs"]
mod gpu_bundle;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Tasks of this repository
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Build what is checked on a GPU into a folder, with a program `run`
    Gpu {
        /// The folder; made new, or one that this task made before
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// Build without optimisation of our own crates
        #[arg(long)]
        debug: bool,
        /// Features of burn-dist, separated by commas; `cuda` is always among them
        #[arg(long, default_value = "cuda", value_name = "LIST")]
        features: String,
        /// Leave NVRTC, CUDA's headers and NCCL to the machine instead of taking them from PyPI
        #[arg(long)]
        without_libraries: bool,
    },
}

fn main() -> ExitCode {
    let Task::Gpu {
        out,
        debug,
        features,
        without_libraries,
    } = Arguments::parse().task;
    match gpu_bundle::bundle(&out, debug, &features, !without_libraries) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
