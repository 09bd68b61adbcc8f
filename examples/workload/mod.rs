//! What the benches of training compute: a GPT of 6.87 million parameters on random tokens.

use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::gpt::{Gpt, GptConfig};

const VOCABULARY: usize = 4096;
const SEQ: usize = 128;
/// Sequences per rank and step.
const BATCH: usize = 8;

/// The model; its parameters are drawn when they are first read.
pub fn model(device: &Device) -> Gpt {
    GptConfig::new()
        .with_vocabulary(VOCABULARY)
        .with_seq(SEQ)
        .with_layers(6)
        .with_hidden(256)
        .with_heads(8)
        .init(device)
}

/// `[8, 128]` tokens and as many targets, the same for a round and rank whatever is measured.
pub fn batch(round: usize, rank: usize, device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>) {
    let mut state = (round * 1009 + rank * 7919 + 1) as u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        ((state >> 33) % VOCABULARY as u64) as i64
    };
    let mut tensor = || {
        let values: Vec<i64> = (0..BATCH * SEQ).map(|_| next()).collect();
        Tensor::from_data(TensorData::new(values, [BATCH, SEQ]), device)
    };
    (tensor(), tensor())
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
