//! Trains a GPT of Burn's own layers on several ranks.
//!
//! Plain: starts `--ranks` processes of itself (or threads, with `--threads`). Under a launcher:
//! joins the world that it finds.

use std::process::ExitCode;

use burn_dist::world::Environment;
use burn_dist::{
    DistError, OutputStyle, ProcessLaunch, Result, World, WorldOptions, launch_processes,
    launch_threads,
};
use examples::train::{Arguments, prepare, train};

/// Bad arguments, data or start environment.
const BAD_INPUT: u8 = 2;

fn main() -> ExitCode {
    match run() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(match error {
                DistError::Config { .. }
                | DistError::Environment { .. }
                | DistError::File { .. } => BAD_INPUT,
                _ => 1,
            })
        }
    }
}

fn run() -> Result<u8> {
    let arguments = Arguments::read(std::env::args_os())?;
    let options = WorldOptions {
        step_timeout: std::time::Duration::from_secs(arguments.step_timeout),
        algorithm: arguments.algorithm.into(),
        shared_memory: !arguments.no_shared_memory,
        ..WorldOptions::default()
    };
    if World::is_launched() {
        let environment = Environment::read(&|name| std::env::var(name).ok())?;
        let (local_rank, ranks) = (environment.local_rank, environment.world_size);
        let nccl = arguments.device.nccl(local_rank, ranks);
        let options = WorldOptions { nccl, ..options };
        let world = World::from_env_with(options)?;
        let corpus = prepare(&arguments, world.world_size())?;
        train(&world, &arguments, &corpus)?;
        return Ok(0);
    }
    let ranks = arguments.ranks_to_start();
    let corpus = prepare(&arguments, ranks)?;
    println!(
        "{} files, {:.1} MiB of text",
        corpus.num_files(),
        corpus.bytes().len() as f64 / f64::from(1 << 20)
    );
    if ranks == 1 {
        train(&World::solo(), &arguments, &corpus)?;
        return Ok(0);
    }
    if arguments.threads {
        let nccl = arguments.device.nccl(0, ranks);
        let options = WorldOptions { nccl, ..options };
        launch_threads(ranks, options, |world| train(&world, &arguments, &corpus))?;
        return Ok(0);
    }
    drop(corpus);
    let program = std::env::current_exe().map_err(|error| DistError::File {
        path: "this program".into(),
        problem: error.to_string(),
    })?;
    let launch = ProcessLaunch::new(program)
        .args(std::env::args_os().skip(1))
        .ranks(ranks)
        .output(OutputStyle::RankZeroUntouched);
    Ok(launch_processes(&launch)?.code)
}
