//! [`WindowDataset`]: a text cut into windows.

use std::convert::Infallible;
use std::sync::Arc;

use burn::data::dataset::Dataset;
use burn::tensor::{Device, Int, Tensor, TensorData};

/// Windows of `seq + 1` bytes: `seq` inputs and, one place later, `seq` targets.
#[derive(Debug, Clone)]
pub struct WindowDataset {
    bytes: Arc<[u8]>,
    seq: usize,
}

impl WindowDataset {
    /// Windows of `seq + 1` bytes that start every `seq` bytes; a shorter rest is left out.
    pub fn new(bytes: &[u8], seq: usize) -> Self {
        Self {
            bytes: bytes.into(),
            seq,
        }
    }
}

impl Dataset<Vec<u8>, Infallible> for WindowDataset {
    fn get(&self, index: usize) -> Result<Vec<u8>, Infallible> {
        let start = index * self.seq;
        Ok(self.bytes[start..start + self.seq + 1].to_vec())
    }

    fn len(&self) -> usize {
        self.bytes.len().saturating_sub(1) / self.seq
    }
}

/// Windows of `T + 1` bytes as tokens `[B, T]` and targets `[B, T]`.
pub fn token_batch(windows: &[Vec<u8>], device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>) {
    let seq = windows.first().map_or(0, |window| window.len() - 1);
    let shape = [windows.len(), seq];
    let tensor = |start: usize| {
        let values: Vec<i64> = windows
            .iter()
            .flat_map(|window| window[start..start + seq].iter().map(|&b| i64::from(b)))
            .collect();
        Tensor::from_data(TensorData::new(values, shape), device)
    };
    (tensor(0), tensor(1))
}
