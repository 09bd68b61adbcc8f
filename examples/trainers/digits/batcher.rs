//! [`DigitBatcher`]: images side by side.

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{Device, Tensor, TensorData};

use super::data::PIXELS;
use super::{Digit, DigitBatch};

/// Puts images into one tensor.
#[derive(Debug, Clone)]
pub struct DigitBatcher;

impl Batcher<Digit, DigitBatch> for DigitBatcher {
    fn batch(&self, items: Vec<Digit>, device: &Device) -> DigitBatch {
        let count = items.len();
        let mut pixels = Vec::with_capacity(count * PIXELS);
        for item in &items {
            pixels.extend_from_slice(&item.pixels);
        }
        let labels: Vec<i64> = items.iter().map(|item| item.label.into()).collect();
        DigitBatch {
            images: Tensor::from_data(TensorData::new(pixels, [count, 1, 8, 8]), device),
            labels: Tensor::from_data(TensorData::new(labels, [count]), device),
        }
    }
}
