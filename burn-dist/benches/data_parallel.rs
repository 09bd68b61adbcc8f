//! What data parallelism costs: a step of two ranks over a step of two independent single ranks that
//! run at the same time, and what wrapping costs a single rank.
//!
//! `cargo bench -p burn-dist --bench data_parallel [-- --steps N --json FILE]`
//!
//! The model is a GPT of 6.87 million parameters, batch 8 per rank. In every round each mode takes
//! one step, so that noise meets all modes alike; a step's time is that of its slowest rank. Ratios
//! are medians over rounds. Every run verifies that all modes that should agree hold the same bits.

use std::path::PathBuf;
use std::time::Instant;

use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Int, Tensor};
use burn_dist::communicator::ReduceOp;
use burn_dist::data_parallel::{DataParallel, NaiveDataParallel, ParameterTable, parameter_hash};
use burn_dist::{
    DistError, OutputStyle, ProcessGroup, ProcessLaunch, Result, World, WorldOptions,
    launch_processes, launch_threads,
};
use clap::Parser;
use examples::gpt::Gpt;
use examples::workload::{self, batch, median};
use serde::Serialize;

#[derive(Debug, Clone, Parser)]
struct Arguments {
    /// Rounds that are measured
    #[arg(long, default_value_t = 12)]
    steps: usize,
    /// One setting alone
    #[arg(long, value_parser = ["alone", "process", "tcp", "in-process"])]
    only: Option<String>,
    /// Write the rows as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Where a started process writes its row
    #[arg(long, hide = true)]
    row: Option<PathBuf>,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// Medians of one setting.
#[derive(Debug, Clone, Serialize)]
struct Row {
    communicator: String,
    ranks: usize,
    /// Seconds of a step without any synchronisation.
    independent: f64,
    overlapped: f64,
    plain: f64,
    overlapped_ratio: f64,
    plain_ratio: f64,
    verified: bool,
}

/// How a mode brings gradients together.
enum Mode {
    Independent,
    Overlapped(DataParallel),
    Plain(NaiveDataParallel),
}

struct Runner {
    mode: Mode,
    model: Gpt,
    optimizer: ModuleOptimizer,
}

impl Runner {
    fn new(mode: Mode, model: Gpt) -> Self {
        Self {
            mode,
            model,
            optimizer: AdamWConfig::new().init(),
        }
    }

    fn step(mut self, tokens: Tensor<2, Int>, targets: Tensor<2, Int>) -> Result<Self> {
        let loss = self.model.loss(tokens, targets);
        let gradients = match &self.mode {
            Mode::Independent => GradientsParams::from_grads(loss.backward(), &self.model),
            Mode::Overlapped(parallel) => parallel.sync(loss.backward(), &self.model)?,
            Mode::Plain(naive) => {
                let gradients = GradientsParams::from_grads(loss.backward(), &self.model);
                naive.sync(gradients, &self.model)?
            }
        };
        self.model = self.optimizer.step(1e-4, self.model, gradients);
        Ok(self)
    }
}

fn measure(group: &ProcessGroup, communicator: &str, rounds: usize) -> Result<Row> {
    let device = Device::flex().autodiff();
    let model = workload::model(&device);
    ParameterTable::of(&model)?;
    // Every mode starts from the parameters of index 0.
    let fresh = || DataParallel::wrap(model.clone(), group);
    let (parallel, wrapped) = fresh()?;
    let mut runners = vec![
        Runner::new(
            Mode::Independent,
            burn::module::Module::materialize(fresh()?.1),
        ),
        Runner::new(Mode::Overlapped(parallel), wrapped),
        Runner::new(
            Mode::Plain(NaiveDataParallel::new(group)),
            burn::module::Module::materialize(fresh()?.1),
        ),
    ];
    let mut seconds = vec![Vec::new(); runners.len()];
    const WARM_UP: usize = 2;
    for round in 0..WARM_UP + rounds {
        let (tokens, targets) = batch(round, group.index(), &device);
        // The first mode of a round changes from round to round.
        for i in 0..runners.len() {
            let mode = (round + i) % runners.len();
            let runner = runners.swap_remove(mode);
            group.barrier()?;
            let start = Instant::now();
            let runner = runner.step(tokens.clone(), targets.clone())?;
            let own = start.elapsed().as_secs_f64();
            runners.push(runner);
            let last = runners.len() - 1;
            runners.swap(mode, last);
            let slowest = group.all_reduce_values(vec![own], ReduceOp::Max)?[0];
            if round >= WARM_UP {
                seconds[mode].push(slowest);
            }
        }
    }
    let hash = |mode: usize| parameter_hash(&runners[mode].model);
    let mut hashes = group.all_gather_text(&hash(1))?;
    hashes.extend(group.all_gather_text(&hash(2))?);
    let verified = hashes.iter().all(|other| *other == hashes[0])
        && (group.size() > 1 || hash(0) == hashes[0]);
    let ratio = |mode: usize| {
        let pairs = seconds[mode].iter().zip(&seconds[0]);
        median(
            pairs
                .map(|(mode, independent)| mode / independent)
                .collect(),
        )
    };
    Ok(Row {
        communicator: communicator.into(),
        ranks: group.size(),
        overlapped_ratio: ratio(1),
        plain_ratio: ratio(2),
        independent: median(seconds[0].clone()),
        overlapped: median(seconds[1].clone()),
        plain: median(seconds[2].clone()),
        verified,
    })
}

/// Starts this benchmark again as `ranks` processes of one thread each.
fn in_processes(ranks: usize, name: &str, arguments: &Arguments) -> Result<Row> {
    let folder = std::env::temp_dir();
    let path = folder.join(format!("burn-dist-bench-{}.json", std::process::id()));
    let program = std::env::current_exe().map_err(|error| DistError::File {
        path: "this program".into(),
        problem: error.to_string(),
    })?;
    // The cost of wrapping is to be told from noise, and a round without peers is quick.
    let steps = arguments.steps * if ranks == 1 { 3 } else { 1 };
    let steps = steps.to_string();
    let launch = ProcessLaunch::new(program)
        .args(["--steps", &steps, "--only", name, "--row"])
        .arg(&path)
        .env("RAYON_NUM_THREADS", "1")
        .ranks(ranks)
        .output(OutputStyle::RankZeroUntouched);
    let report = launch_processes(&launch)?;
    if report.code != 0 {
        return Err(DistError::Rank {
            rank: 0,
            problem: "a rank of the benchmark failed; see its output above".into(),
        });
    }
    let text = std::fs::read_to_string(&path).map_err(|error| DistError::File {
        path: path.display().to_string(),
        problem: error.to_string(),
    })?;
    // It was read; a leftover in the temporary folder does no harm.
    let _ = std::fs::remove_file(&path);
    let value: serde_json::Value = serde_json::from_str(&text).expect("invariant: our own JSON");
    let number = |key: &str| value[key].as_f64().unwrap_or(f64::NAN);
    Ok(Row {
        communicator: value["communicator"].as_str().unwrap_or("?").into(),
        ranks,
        independent: number("independent"),
        overlapped: number("overlapped"),
        plain: number("plain"),
        overlapped_ratio: number("overlapped_ratio"),
        plain_ratio: number("plain_ratio"),
        verified: value["verified"].as_bool().unwrap_or(false),
    })
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(path) = &arguments.row {
        let name = arguments.only.as_deref().unwrap_or("process");
        let world = World::from_env_with(WorldOptions {
            shared_memory: name != "tcp",
            ..WorldOptions::default()
        })?;
        let group = world.whole()?;
        let row = measure(&group, name, arguments.steps)?;
        if group.index() == 0 {
            let text = serde_json::to_string(&row).expect("invariant: plain data");
            std::fs::write(path, text).map_err(|error| DistError::File {
                path: path.display().to_string(),
                problem: error.to_string(),
            })?;
        }
        return Ok(());
    }
    let wanted = |name: &str| arguments.only.as_deref().is_none_or(|only| only == name);
    let mut rows = Vec::new();
    if wanted("alone") {
        rows.push(in_processes(1, "alone", &arguments)?);
    }
    for name in ["process", "tcp"] {
        if wanted(name) {
            rows.push(in_processes(2, name, &arguments)?);
        }
    }
    if wanted("in-process") {
        let steps = arguments.steps;
        let in_process = launch_threads(2, WorldOptions::default(), |world| {
            measure(&world.whole()?, "in-process", steps)
        })?;
        rows.extend(in_process.into_iter().next());
    }
    println!("communicator  ranks  independent  overlapped         plain              verified");
    for row in &rows {
        println!(
            "{:<12}  {:>5}  {:>8.1} ms  {:>7.1} ms {:>6.3}x  {:>7.1} ms {:>6.3}x  {}",
            row.communicator,
            row.ranks,
            row.independent * 1e3,
            row.overlapped * 1e3,
            row.overlapped_ratio,
            row.plain * 1e3,
            row.plain_ratio,
            row.verified
        );
    }
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&rows).expect("invariant: plain data");
        std::fs::write(path, text).map_err(|error| DistError::File {
            path: path.display().to_string(),
            problem: error.to_string(),
        })?;
    }
    match rows.iter().all(|row| row.verified) {
        true => Ok(()),
        false => Err(DistError::config(
            "modes that should agree hold different parameters",
            "this is a bug",
        )),
    }
}
