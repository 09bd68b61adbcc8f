//! Kernels beside the chains of tensor operations that they replace, and beside a copy.
//!
//! `cargo bench -p burn-dist --bench kernels [-- --elements N --rounds N --only adamw,norm --keep-memory --backend flex|cpu|cuda --json FILE]`
//!
//! One thread. In every round each kernel, its twin and a copy of as many elements run once; times are medians
//! over rounds. `copy share` is the bandwidth of the kernel, counting every array that it reads or writes, over
//! that of the copy, which reads one and writes one into memory that is there already. Every kernel's
//! result is compared with its twin's.

#[path = "kernels/cases.rs"]
mod cases;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;

use burn::tensor::Device;
use cases::{Case, NAMES, case};
use clap::{Parser, ValueEnum};
use examples::workload::{median, write_json};
use serde::Serialize;

#[derive(Debug, Clone, Parser)]
struct Arguments {
    /// Elements of each array
    #[arg(long, default_value_t = 16_000_000)]
    elements: usize,
    /// Rounds that are measured
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Kernels that are measured, separated by commas
    #[arg(long, value_delimiter = ',', default_values = NAMES)]
    only: Vec<String>,
    /// Let glibc keep memory that is given back: else most of a chain's time goes to the faults of new pages
    #[arg(long)]
    keep_memory: bool,
    /// Where tensors are
    #[arg(long, value_enum, default_value = "flex")]
    backend: BackendName,
    /// Write the rows as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Given to the process that measures
    #[arg(long, hide = true)]
    one_thread: bool,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BackendName {
    Flex,
    #[cfg(feature = "cpu")]
    Cpu,
    #[cfg(feature = "cuda")]
    Cuda,
}

impl BackendName {
    fn device(self) -> Device {
        match self {
            Self::Flex => Device::flex(),
            #[cfg(feature = "cpu")]
            Self::Cpu => Device::cpu(),
            #[cfg(feature = "cuda")]
            Self::Cuda => Device::cuda(0),
        }
    }
}

/// A kernel on a backend.
#[derive(Debug, Serialize)]
struct Row {
    kernel: String,
    backend: String,
    elements: usize,
    us: f64,
    stock_us: f64,
    speedup: f64,
    copy_share: f64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if !arguments.one_thread {
        // The number of threads is read when the first one starts.
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(program);
        command
            .args(std::env::args_os().skip(1))
            .arg("--one-thread")
            .env("RAYON_NUM_THREADS", "1");
        if arguments.keep_memory {
            command
                .env("MALLOC_MMAP_THRESHOLD_", "4294967296")
                .env("MALLOC_TRIM_THRESHOLD_", "17179869184");
        }
        let status = command.status().expect("this program starts again");
        return ExitCode::from(if status.success() { 0 } else { 1 });
    }
    let device = arguments.backend.device();
    let backend = format!("{:?}", arguments.backend).to_lowercase();
    println!(
        "kernel                    backend   elements        us   twin, us  speedup  copy share"
    );
    let mut rows = Vec::new();
    for name in &arguments.only {
        let mut case = case(name, arguments.elements, &device);
        let row = measure(&mut case, &backend, arguments.rounds);
        println!(
            "{:<24}  {:<7}  {:>9}  {:>8.0}  {:>9.0}  {:>6.2}x  {:>9.2}",
            row.kernel,
            row.backend,
            row.elements,
            row.us,
            row.stock_us,
            row.speedup,
            row.copy_share
        );
        rows.push(row);
    }
    if let Some(path) = &arguments.json {
        write_json(path, &rows).expect("the file can be written");
    }
    ExitCode::SUCCESS
}

fn measure(case: &mut Case, backend: &str, rounds: usize) -> Row {
    let timed = |f: &mut dyn FnMut()| {
        let start = Instant::now();
        f();
        start.elapsed().as_secs_f64() * 1e6
    };
    let (mut fused, mut twin, mut copy) = (Vec::new(), Vec::new(), Vec::new());
    // The first round warms up.
    for round in 0..=rounds {
        let times = [
            timed(&mut case.copy),
            timed(&mut case.fused),
            timed(&mut case.twin),
        ];
        if round > 0 {
            copy.push(times[0]);
            fused.push(times[1]);
            twin.push(times[2]);
        }
    }
    (case.verify)();
    let ratios = |a: &[f64], b: &[f64]| median(a.iter().zip(b).map(|(a, b)| a / b).collect());
    let copies_per_kernel = case.bytes / case.copy_bytes;
    Row {
        kernel: case.name.into(),
        backend: backend.into(),
        elements: case.elements,
        speedup: ratios(&twin, &fused),
        copy_share: copies_per_kernel * ratios(&copy, &fused),
        us: median(fused),
        stock_us: median(twin),
    }
}
