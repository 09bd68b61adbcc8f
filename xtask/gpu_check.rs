//! Runs what `cargo xtask gpu` laid out beside it, and writes one report: `report/report.json` and `report/report.md`.
//!
//! Code 0: everything that was run is right. 1: something is not, or could not be run. 2: there is no GPU to run on.

#[path = "gpu_check/machine.rs"]
mod machine;
#[path = "gpu_check/program.rs"]
mod program;
#[path = "gpu_check/report.rs"]
mod report;
#[path = "gpu_check/steps.rs"]
mod steps;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use machine::Machine;
use program::Programs;
use report::Report;

/// Run the checks of this folder on this machine's GPU
#[derive(Debug, Parser)]
struct Arguments {
    /// Where the report goes; `report` beside this program by default
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Elements of each array of the bench
    #[arg(long, default_value_t = 64_000_000)]
    elements: usize,
    /// No program runs longer
    #[arg(long, default_value_t = 240, value_name = "SECONDS")]
    deadline: u64,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> std::io::Result<ExitCode> {
    let program = std::env::current_exe()?;
    let root = program.parent().unwrap_or(&program).to_path_buf();
    let out = arguments.out.clone().unwrap_or_else(|| root.join("report"));
    std::fs::create_dir_all(&out)?;
    let deadline = Duration::from_secs(arguments.deadline);
    let programs = Programs::new(root, out.clone(), deadline);
    let machine = Machine::examine(&programs);
    let steps = steps::all(&programs, &machine, arguments.elements);
    let report = Report::new(machine, steps);
    report.write(&out)?;
    println!("{}", report.summary());
    println!("report: {}", out.join("report.md").display());
    Ok(ExitCode::from(report.code()))
}
