//! Starts a program as several ranks, as torchrun does.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use burn_dist::flight::{Diagnosis, FlightLog};
use burn_dist::world::{Doctor, OutputStyle};
use burn_dist::{DistError, ProcessLaunch, Result, launch_processes};
use clap::Parser;

/// Start a program as several ranks on this host, or on several; `burnrun diagnose FILE...` reads what
/// failed ranks have written, `burnrun doctor` looks at what this host offers
#[derive(Debug, Parser)]
#[command(name = "burnrun", version)]
struct Arguments {
    /// Ranks to start on this host
    #[arg(long, alias = "nproc_per_node", default_value_t = 1, value_name = "N")]
    nproc_per_node: usize,
    /// Number of hosts; each runs burnrun once
    #[arg(long, default_value_t = 1, value_name = "N")]
    nnodes: usize,
    /// This host's number, from 0
    #[arg(long, alias = "node_rank", default_value_t = 0, value_name = "R")]
    node_rank: usize,
    /// Address of host 0
    #[arg(long, alias = "master_addr", default_value = "127.0.0.1")]
    master_addr: String,
    /// Port on host 0; 0 takes a free one (one host only)
    #[arg(long, alias = "master_port", default_value_t = 0)]
    master_port: u16,
    /// Longest wait for ranks to arrive, in seconds
    #[arg(long, value_name = "SECONDS")]
    startup_timeout: Option<f64>,
    /// Longest wait for other ranks within a call, in seconds
    #[arg(long, value_name = "SECONDS")]
    step_timeout: Option<f64>,
    /// Where ranks write their last calls when one fails or on SIGUSR1 [default: a new folder]
    #[arg(long, value_name = "DIR")]
    flight_dir: Option<PathBuf>,
    /// Leave the terminal to rank 0, as a dashboard needs; other ranks are heard when one fails
    #[arg(long)]
    dashboard: bool,
    /// The program and its arguments, after --
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

fn seconds(flag: &str, value: f64) -> Result<Duration> {
    match Duration::try_from_secs_f64(value) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(DistError::config(
            format!("{flag} {value} is not a positive number of seconds"),
            "see burnrun --help",
        )),
    }
}

/// Who was behind when a job failed, from the ranks' last calls
#[derive(Debug, Parser)]
#[command(name = "burnrun diagnose", version)]
struct Diagnose {
    /// Recordings `rank-N.json`, or folders that hold them
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// What this host offers to ranks, and what it lacks
#[derive(Debug, Parser)]
#[command(name = "burnrun doctor", version)]
struct Checkup {}

fn parse<A: Parser>(arguments: impl Iterator<Item = OsString>) -> Result<A> {
    A::try_parse_from(arguments).map_err(|error| {
        if !error.use_stderr() {
            error.exit();
        }
        let text = error.to_string();
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let first = lines.next().unwrap_or("bad arguments");
        let more = lines.next().filter(|_| first.ends_with(':'));
        let first = first.trim_start_matches("error: ").to_string();
        DistError::config(
            first + &more.map(|more| format!(" {more}")).unwrap_or_default(),
            "see burnrun --help",
        )
    })
}

fn diagnose() -> Result<u8> {
    let arguments: Diagnose = parse(std::env::args_os().skip(1))?;
    print!("{}", Diagnosis::of(&FlightLog::read_all(&arguments.files)?));
    Ok(0)
}

/// Missing parts are findings, not failures.
fn doctor() -> Result<u8> {
    let Checkup {} = parse(std::env::args_os().skip(1))?;
    let text = |text: OsString| text.to_string_lossy().into_owned();
    let variables = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
    print!("{}", Doctor::examine(&variables.collect::<Vec<_>>()));
    Ok(0)
}

fn run() -> Result<u8> {
    let first = std::env::args_os().nth(1).unwrap_or_default();
    match first.to_str() {
        Some("diagnose") => return diagnose(),
        Some("doctor") => return doctor(),
        _ => {}
    }
    let arguments: Arguments = parse(std::env::args_os())?;
    let mut launch = ProcessLaunch::new(&arguments.program[0])
        .args(&arguments.program[1..])
        .ranks(arguments.nproc_per_node)
        .nodes(arguments.nnodes, arguments.node_rank)
        .master(arguments.master_addr, arguments.master_port);
    if let Some(timeout) = arguments.startup_timeout {
        launch = launch.startup_timeout(seconds("--startup-timeout", timeout)?);
    }
    if let Some(timeout) = arguments.step_timeout {
        launch = launch.step_timeout(seconds("--step-timeout", timeout)?);
    }
    if let Some(folder) = arguments.flight_dir {
        launch = launch.flight_folder(folder);
    }
    if arguments.dashboard {
        launch = launch.output(OutputStyle::RankZeroTerminal);
    }
    Ok(launch_processes(&launch)?.code)
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("burnrun: {error}");
            ExitCode::from(2)
        }
    }
}
