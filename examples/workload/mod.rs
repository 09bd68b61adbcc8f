//! What the benches of training compute, a GPT of 6.87 million parameters on random tokens, and how they start.

use std::path::Path;

use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_dist::{DistError, OutputStyle, ProcessLaunch, Result, launch_processes};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::gpt::{Gpt, GptConfig};

const VOCABULARY: usize = 4096;
const SEQ: usize = 128;
/// Sequences per rank and step.
const BATCH: usize = 8;

/// Its sizes.
pub fn config() -> GptConfig {
    GptConfig::new()
        .with_vocabulary(VOCABULARY)
        .with_seq(SEQ)
        .with_layers(6)
        .with_hidden(256)
        .with_heads(8)
}

/// The model; its parameters are drawn when they are first read.
pub fn model(device: &Device) -> Gpt {
    config().init(device)
}

/// `[8, 128]` tokens and as many targets, the same for a round and rank whatever is measured.
pub fn batch(round: usize, rank: usize, device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>) {
    let seed = (round * 1009 + rank * 7919 + 1) as u64;
    let both = tokens([2 * BATCH, SEQ], VOCABULARY, seed, device);
    let targets = both.clone().slice_dim(0, BATCH..2 * BATCH);
    (both.slice_dim(0, 0..BATCH), targets)
}

/// Random tokens, the same for the same seed.
pub fn tokens(shape: [usize; 2], vocabulary: usize, seed: u64, device: &Device) -> Tensor<2, Int> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        ((state >> 33) % vocabulary as u64) as i64
    };
    let values: Vec<i64> = (0..shape[0] * shape[1]).map(|_| next()).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Starts `ranks` processes of this program, a benchmark, of so many threads each, with these arguments and
/// `--found FILE`, and reads what the first of them [writes there](write_found).
///
/// # Errors
/// [`DistError::Config`] if a rank fails; [`DistError::File`].
pub fn started<T: DeserializeOwned>(ranks: usize, threads: usize, arguments: &[&str]) -> Result<T> {
    let folder = tempfile::tempdir().map_err(|error| file("a temporary folder", &error))?;
    let found = folder.path().join("found.json");
    let program = std::env::current_exe().map_err(|error| file("this program", &error))?;
    let launch = ProcessLaunch::new(program)
        .args(arguments)
        .arg("--found")
        .arg(&found)
        .env("RAYON_NUM_THREADS", threads.to_string())
        .output(OutputStyle::RankZeroUntouched)
        .ranks(ranks);
    let report = launch_processes(&launch)?;
    if report.code != 0 {
        return Err(DistError::config(
            format!(
                "{ranks} ranks with {arguments:?} ended with code {}",
                report.code
            ),
            "their messages are above",
        ));
    }
    let text = std::fs::read_to_string(&found).map_err(|error| file("the result", &error))?;
    serde_json::from_str(&text).map_err(|error| file("the result", &error))
}

/// Writes the result of a started process, if it is the first rank.
///
/// # Errors
/// [`DistError::File`].
pub fn write_found(rank: usize, path: &Path, result: &impl Serialize) -> Result<()> {
    match rank {
        0 => write_json(path, result),
        _ => Ok(()),
    }
}

/// Writes a benchmark's result as JSON.
///
/// # Errors
/// [`DistError::File`].
pub fn write_json(path: &Path, result: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(result).expect("invariant: plain data");
    std::fs::write(path, text).map_err(|error| file(&path.display().to_string(), &error))
}

fn file(path: &str, problem: &dyn std::fmt::Display) -> DistError {
    DistError::File {
        path: path.into(),
        problem: problem.to_string(),
    }
}

/// The value in the middle.
///
/// # Panics
/// If there is none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// `VmHWM` of this process: the most resident memory so far, in bytes; 0 where the system does not tell.
pub fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map_or(0, |kib| kib * 1024)
}
