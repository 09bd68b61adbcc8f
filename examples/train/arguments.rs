//! [`Arguments`]: the command line of `train_gpt`.

use std::path::PathBuf;

use burn_dist::communicator::Algorithm;
use burn_dist::{DistError, Result};
use burn_pipeline::{Schedule, SchedulePlan};
use clap::{Parser, ValueEnum};

use super::{DeviceName, Grouping};

/// Train a byte-level GPT, made of Burn's own layers, on several ranks.
#[derive(Debug, Clone, Parser)]
#[command(name = "train_gpt", version, args_override_self = true)]
pub struct Arguments {
    /// Ranks to start (2 by default); under a launcher the world's size, which it must then equal
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Ranks are threads of this process instead of processes
    #[arg(long)]
    pub threads: bool,
    /// Sequences per optimizer step, over all ranks and micro-batches
    #[arg(long, default_value_t = 16)]
    pub batch: usize,
    /// Micro-batches per rank and optimizer step
    #[arg(long, default_value_t = 1, value_name = "M")]
    pub micro_batches: usize,
    /// Bytes per sequence
    #[arg(long, default_value_t = 128)]
    pub seq: usize,
    /// Blocks of the model
    #[arg(long, default_value_t = 2)]
    pub layers: usize,
    /// Width of the model
    #[arg(long, default_value_t = 128)]
    pub hidden: usize,
    /// Attention heads
    #[arg(long, default_value_t = 4)]
    pub heads: usize,
    /// Optimizer steps
    #[arg(long, default_value_t = 500)]
    pub steps: usize,
    /// Learning rate of AdamW
    #[arg(long, default_value_t = 1e-3)]
    pub lr: f64,
    /// Seed of parameters and of the order of the data
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// With one rank: sum micro-batches in the grouping of N ranks, or of R replicas of S shards, to
    /// compare bits
    #[arg(long, value_name = "N|RxS")]
    pub as_ranks: Option<Grouping>,
    /// A text file, or a folder of them; by default the sources of the Burn crates
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// Write the result as one JSON object
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write into this folder what every rank did in the last steps: trace.json for Perfetto, and of a pipeline
    /// step.svg
    #[arg(long, value_name = "DIR")]
    pub trace: Option<PathBuf>,
    /// Target size of gradient buckets, in bytes (the first one: at most 1 MB)
    #[arg(long, default_value_t = 25_000_000, value_name = "BYTES")]
    pub bucket_bytes: usize,
    /// ZeRO: 0 whole replicas, 1 and 2 each rank keeps its part of the optimizer's state and of the
    /// reduced gradients, 3 and of the parameters
    #[arg(long, default_value_t = 0, value_name = "STAGE", value_parser = clap::value_parser!(u8).range(0..=3))]
    pub zero: u8,
    /// With --zero 3: replicas, inside each of which parameters are split
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub replicate: usize,
    /// Ranks over which each layer is split: heads, inner features and vocabulary
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub tp: usize,
    /// With --tp: activations between split layers are split along the sequence
    #[arg(long)]
    pub sequence_parallel: bool,
    /// With --tp: before the first step list every parameter's reductions, and check each gradient
    #[arg(long)]
    pub audit: bool,
    /// Ranks over which the blocks of the model are dealt, in stages
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub pp: usize,
    /// With --pp: in which order stages work: gpipe, 1f1b (the default), interleaved:V with V stages on each
    /// rank, zb-h1, or a file
    #[arg(long)]
    pub schedule: Option<Schedule>,
    /// Data-parallel ranks; --ranks over --tp and --pp by default
    #[arg(long, value_name = "N")]
    pub dp: Option<usize>,
    /// Where tensors are: flex, cpu (CubeCL's, for tests), cuda (each rank its own device, over NCCL), cuda:N (one that
    /// ranks of a host share)
    #[arg(long, default_value = "flex", value_name = "flex|cpu|cuda[:N]")]
    pub device: DeviceName,
    /// Element type that the model computes in; bf16 steps master weights in f32
    #[arg(long, value_enum, default_value = "f32")]
    pub dtype: DTypeName,
    /// Scale gradients down to this norm, over all parameters together
    #[arg(long, value_name = "NORM", allow_negative_numbers = true)]
    pub clip: Option<f64>,
    /// Compute cheap operations again in the backward pass instead of keeping their results; with --zero 3
    /// no view keeps gathered parameters either; with --pp blocks keep their inputs only
    #[arg(long)]
    pub recompute: bool,
    /// Reduce each gradient on its own after the backward pass; with --tp no collective beside a product
    #[arg(long)]
    pub no_overlap: bool,
    /// Step with Burn's own AdamW, a chain of tensor operations, in place of one pass; the bits are the same
    #[arg(long)]
    pub twins: bool,
    /// How sums are carried out; only `direct` gives the bits of one rank
    #[arg(long, value_enum, default_value = "direct")]
    pub algorithm: AlgorithmName,
    /// Exchange over TCP also between processes of one host
    #[arg(long)]
    pub no_shared_memory: bool,
    /// Longest wait for other ranks within a step, in seconds
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    pub step_timeout: u64,
}

/// `--dtype`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DTypeName {
    /// 32 bits.
    F32,
    /// 16 bits, 8 of them for the exponent.
    Bf16,
}

/// `--algorithm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AlgorithmName {
    /// All-to-all of chunks, sum in rank order, all-gather.
    Direct,
    /// Partial sums around a ring.
    Ring,
    /// Sums inside each host, then between hosts.
    HostFirst,
    /// A parameter server.
    Centralized,
}

impl From<AlgorithmName> for Algorithm {
    fn from(name: AlgorithmName) -> Self {
        match name {
            AlgorithmName::Direct => Self::Direct,
            AlgorithmName::Ring => Self::Ring,
            AlgorithmName::HostFirst => Self::HostFirst,
            AlgorithmName::Centralized => Self::Centralized,
        }
    }
}

impl Arguments {
    /// Reads a command line; an error is one line.
    ///
    /// # Errors
    /// [`DistError::Config`] for unknown or malformed flags. `--help` and `--version` print and end
    /// the program.
    pub fn read(line: impl IntoIterator<Item = std::ffi::OsString>) -> Result<Self> {
        Self::try_parse_from(line).map_err(|error| {
            if !error.use_stderr() {
                error.exit();
            }
            let text = error.to_string();
            let first = text.lines().next().unwrap_or("bad arguments");
            DistError::config(
                first.trim_start_matches("error: "),
                "see train_gpt --help".to_string(),
            )
        })
    }

    /// How many ranks' micro-batches one rank computes: 1, or N with `--as-ranks N`.
    pub fn virtual_ranks(&self) -> usize {
        self.as_ranks.map_or(1, |grouping| grouping.ranks())
    }

    /// Ranks that hold one model: --tp times --pp.
    pub fn model_ranks(&self) -> usize {
        self.tp.saturating_mul(self.pp)
    }

    /// Whether a pipeline runs the model: with --pp, or --schedule on one rank.
    pub fn is_piped(&self) -> bool {
        self.pp > 1 || self.schedule.is_some()
    }

    /// The pipeline's plan, if there is one.
    ///
    /// # Errors
    /// As [`Schedule::plan`].
    pub fn plan(&self) -> Result<Option<SchedulePlan>> {
        let schedule = self.schedule.clone().unwrap_or(Schedule::OneFOneB);
        match self.is_piped() {
            true => Ok(Some(schedule.plan(self.pp, self.micro_batches)?)),
            false => Ok(None),
        }
    }

    /// Ranks to start without a launcher.
    pub fn ranks_to_start(&self) -> usize {
        let parts = self.model_ranks();
        let split = self.dp.map(|dp| dp.saturating_mul(parts));
        let alone = self.as_ranks.map(|_| 1);
        self.ranks.or(split).or(alone).unwrap_or(2.max(parts))
    }
}
