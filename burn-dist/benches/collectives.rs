//! Time and bandwidth of every collective, and its share of this machine's copy bandwidth.
//!
//! `cargo bench -p burn-dist --bench collectives [-- --ranks 2,4 --communicators process,in-process,tcp
//! --sizes 4096,67108864 --json FILE]`; with `--features mpi` also the communicator `mpi`, by mpirun. The
//! rows `unchecked` are of the same processes, block by block beside the others, without the comparison
//! of calls: the last column is what it costs.
//!
//! Sizes follow nccl-tests: the array of an all_reduce, the whole array of the others. algbw = S/t,
//! busbw = algbw x 2(n-1)/n for all_reduce, (n-1)/n for the others, 1 for broadcast. A block's time is
//! that of its slowest rank; rows are medians over blocks. Every operation verifies its result first.

#[path = "collectives/collective.rs"]
mod collective;

use std::path::{Path, PathBuf};
use std::time::Instant;

use burn::tensor::{Bytes, DType};
use burn_dist::communicator::{CommunicatorOptions, HostBuffer, Operation, ReduceOp};
use burn_dist::{
    DistError, OutputStyle, ProcessGroup, ProcessLaunch, Result, World, WorldOptions,
    launch_processes, launch_threads,
};
use clap::Parser;
use collective::Collective;
use examples::workload::median;
use serde::{Deserialize, Serialize};

#[cfg(not(feature = "mpi"))]
const COMMUNICATORS: [&str; 3] = ["process", "in-process", "tcp"];
#[cfg(feature = "mpi")]
const COMMUNICATORS: [&str; 4] = ["process", "in-process", "tcp", "mpi"];

#[derive(Debug, Clone, Parser)]
struct Arguments {
    /// Numbers of ranks
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4])]
    ranks: Vec<usize>,
    /// process (shared memory on one host), in-process, tcp, mpi (with the feature `mpi`)
    #[arg(long, value_delimiter = ',', default_values = COMMUNICATORS)]
    communicators: Vec<String>,
    /// Bytes of the arrays
    #[arg(long, value_delimiter = ',', default_values_t = [4 << 10, 256 << 10, 4 << 20, 64 << 20])]
    sizes: Vec<usize>,
    /// Write the rows as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Where a started process writes its rows
    #[arg(long, hide = true)]
    rows: Option<PathBuf>,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Row {
    communicator: String,
    op: String,
    ranks: usize,
    bytes: usize,
    us: f64,
    algbw_gbs: f64,
    busbw_gbs: f64,
    copy_share: f64,
    /// What the comparison of calls adds: the median of ratios of neighbouring blocks, less one.
    check_cost: f64,
}

fn buffer(len: usize, value: f32) -> HostBuffer {
    HostBuffer::new(Bytes::from_elems(vec![value; len]), DType::F32, vec![len])
}

/// Bytes per second of a copy of 64 MiB by one thread, as this rank does it at the same time as the
/// others.
fn copy_bandwidth(group: &ProcessGroup) -> Result<f64> {
    let source = vec![1u8; 64 << 20];
    let mut target = vec![0u8; source.len()];
    let mut rates = Vec::new();
    for _ in 0..5 {
        group.barrier()?;
        let start = Instant::now();
        target.copy_from_slice(std::hint::black_box(&source));
        std::hint::black_box(&mut target);
        rates.push(source.len() as f64 / start.elapsed().as_secs_f64());
    }
    Ok(median(rates))
}

/// One way to make the calls that are measured.
struct Contender {
    name: String,
    group: ProcessGroup,
}

/// This communicator and, beside it, the same without the comparison of calls.
fn contenders(world: &World, name: &str) -> Result<[Contender; 2]> {
    let ranks: Vec<usize> = (0..world.world_size()).collect();
    let checked = world.options().communicator();
    let unchecked = CommunicatorOptions {
        check_calls: false,
        ..checked
    };
    Ok([
        Contender {
            name: name.into(),
            group: world.group_with("checked", &ranks, checked)?,
        },
        Contender {
            name: format!("{name} unchecked"),
            group: world.group_with("unchecked", &ranks, unchecked)?,
        },
    ])
}

/// What the calls of one kind and size need.
struct Work {
    collective: Collective,
    operation: Operation,
    /// Elements of a rank's input.
    len: usize,
    calls: u32,
}

impl Work {
    fn verify(&self, group: &ProcessGroup) -> Result<()> {
        let input = buffer(self.len, group.index() as f32 + 1.0);
        let output = group.run(self.operation.clone(), input)?;
        let n = group.size();
        let right = u8::from(self.collective.is_right(&output, n));
        match group.all_reduce_values(vec![right], ReduceOp::Min)?[0] {
            0 => Err(DistError::config(
                format!(
                    "{} of {} elements over {n} ranks is wrong",
                    self.operation.name(),
                    self.len
                ),
                "this is a bug",
            )),
            _ => Ok(()),
        }
    }

    /// Seconds of a call, of the slowest rank, on average over a block.
    fn block(&self, group: &ProcessGroup) -> Result<f64> {
        // Memory that has been written: untouched zeros would all be one page.
        let fresh = || HostBuffer::recycled(group.communicator().pool(), DType::F32, &[self.len]);
        let mut input = fresh();
        input.bytes_mut().fill(0);
        group.barrier()?;
        let mut own = 0.0;
        for _ in 0..self.calls {
            let start = Instant::now();
            let output = group.run(self.operation.clone(), input)?;
            own += start.elapsed().as_secs_f64() / f64::from(self.calls);
            // Calls take their input: a new one, made outside the measured time, where the output
            // cannot be one.
            input = match output.num_elements() == self.len {
                true => output,
                false => {
                    drop(output);
                    fresh()
                }
            };
        }
        Ok(group.all_reduce_values(vec![own], ReduceOp::Max)?[0])
    }
}

fn measure(contenders: &[Contender; 2], sizes: &[usize]) -> Result<Vec<Row>> {
    let n = contenders[0].group.size();
    let copy = copy_bandwidth(&contenders[0].group)?;
    let mut rows = Vec::new();
    for collective in Collective::ALL {
        for &bytes in sizes {
            let elements = (bytes / 4).next_multiple_of(n);
            let (calls, blocks) = match bytes {
                0..=65_536 => (200, 15),
                65_537..=1_048_576 => (40, 25),
                1_048_577..=16_777_216 => (5, 25),
                _ => (1, 9),
            };
            let work = Work {
                collective,
                operation: collective.operation(n, elements),
                len: collective.input_len(n, elements),
                calls,
            };
            let mut times = [Vec::new(), Vec::new()];
            for contender in contenders {
                work.verify(&contender.group)?;
            }
            for block in 0..blocks + 2 {
                // In turns, so that both meet the same moments of the machine.
                for (contender, times) in contenders.iter().zip(&mut times) {
                    let seconds = work.block(&contender.group)?;
                    if block >= 2 {
                        times.push(seconds);
                    }
                }
            }
            let ratios = times[0].iter().zip(&times[1]).map(|(a, b)| a / b).collect();
            let check_cost = median(ratios) - 1.0;
            for (contender, times) in contenders.iter().zip(times) {
                let seconds = median(times);
                let algbw = (4 * elements) as f64 / seconds;
                let busbw = algbw * collective.factor(n);
                rows.push(Row {
                    communicator: contender.name.clone(),
                    op: work.operation.name().into(),
                    ranks: n,
                    bytes: 4 * elements,
                    us: seconds * 1e6,
                    algbw_gbs: algbw / 1e9,
                    busbw_gbs: busbw / 1e9,
                    copy_share: busbw / copy,
                    check_cost,
                });
            }
        }
    }
    Ok(rows)
}

fn file_error(path: &Path, error: impl std::fmt::Display) -> DistError {
    DistError::File {
        path: path.display().to_string(),
        problem: error.to_string(),
    }
}

/// Starts this benchmark again by mpirun.
fn by_mpirun(ranks: usize, program: &Path, flags: &[&str], rows: &Path) -> Result<bool> {
    if cfg!(not(feature = "mpi")) {
        return Err(DistError::config(
            "this benchmark was built without MPI",
            "add --features mpi",
        ));
    }
    let mut command = std::process::Command::new("mpirun");
    // More ranks than cores is a case to be measured; mpirun asks root whether it means it.
    command.args([
        "--oversubscribe",
        "--bind-to",
        "none",
        "-np",
        &ranks.to_string(),
    ]);
    if rustix::process::geteuid().is_root() {
        command.arg("--allow-run-as-root");
    }
    command.arg(program).args(flags).arg(rows);
    let status = command
        .status()
        .map_err(|e| file_error("mpirun".as_ref(), e))?;
    Ok(status.success())
}

/// Starts this benchmark again as processes.
fn in_processes(ranks: usize, communicator: &str, sizes: &[usize]) -> Result<Vec<Row>> {
    let name = format!("burn-dist-collectives-{}.json", std::process::id());
    let path = std::env::temp_dir().join(name);
    let program = std::env::current_exe().map_err(|e| file_error("this program".as_ref(), e))?;
    let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
    let sizes = sizes.join(",");
    let flags = ["--communicators", communicator, "--sizes", &sizes, "--rows"];
    let ended_well = match communicator {
        "mpi" => by_mpirun(ranks, &program, &flags, &path)?,
        _ => {
            let launch = ProcessLaunch::new(program)
                .args(flags)
                .arg(&path)
                .ranks(ranks)
                .output(OutputStyle::RankZeroUntouched);
            launch_processes(&launch)?.code == 0
        }
    };
    if !ended_well {
        return Err(DistError::Rank {
            rank: 0,
            problem: "a rank of the benchmark failed; see its output above".into(),
        });
    }
    let text = std::fs::read_to_string(&path).map_err(|e| file_error(&path, e))?;
    // It was read; a leftover in the temporary folder does no harm.
    let _ = std::fs::remove_file(&path);
    serde_json::from_str(&text).map_err(|e| file_error(&path, e))
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(path) = &arguments.rows {
        let name = &arguments.communicators[0];
        let world = World::from_env_with(WorldOptions {
            shared_memory: name != "tcp",
            ..WorldOptions::default()
        })?;
        let rows = measure(&contenders(&world, name)?, &arguments.sizes)?;
        if world.rank() == 0 {
            let text = serde_json::to_string(&rows).expect("invariant: plain data");
            std::fs::write(path, text).map_err(|e| file_error(path, e))?;
        }
        return Ok(());
    }
    let mut rows = Vec::new();
    println!(
        "communicator  operation       ranks       bytes           us  algbw GB/s  busbw GB/s  of copy  comparison"
    );
    for &ranks in &arguments.ranks {
        for communicator in &arguments.communicators {
            let sizes = &arguments.sizes;
            let new = match communicator.as_str() {
                "in-process" => launch_threads(ranks, WorldOptions::default(), |world| {
                    measure(&contenders(&world, "in-process")?, sizes)
                })?
                .swap_remove(0),
                "process" | "tcp" | "mpi" => in_processes(ranks, communicator, sizes)?,
                other => {
                    return Err(DistError::config(
                        format!("there is no communicator {other:?}"),
                        "take process, tcp, in-process or mpi",
                    ));
                }
            };
            for row in new
                .iter()
                .filter(|row| !row.communicator.ends_with("unchecked"))
            {
                println!(
                    "{:<12}  {:<14}  {:>5}  {:>10}  {:>11.1}  {:>10.3}  {:>10.3}  {:>6.0}%  {:>+9.1}%",
                    row.communicator,
                    row.op,
                    row.ranks,
                    row.bytes,
                    row.us,
                    row.algbw_gbs,
                    row.busbw_gbs,
                    100.0 * row.copy_share,
                    100.0 * row.check_cost
                );
            }
            rows.extend(new);
        }
    }
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&rows).expect("invariant: plain data");
        std::fs::write(path, text).map_err(|e| file_error(path, e))?;
    }
    Ok(())
}
