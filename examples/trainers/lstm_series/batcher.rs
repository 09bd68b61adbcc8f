//! [`WindowBatcher`]: windows below each other.

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{Device, Tensor, TensorData};

use super::{Window, WindowBatch};

/// Puts windows into one tensor.
#[derive(Debug, Clone)]
pub struct WindowBatcher;

impl Batcher<Window, WindowBatch> for WindowBatcher {
    fn batch(&self, items: Vec<Window>, device: &Device) -> WindowBatch {
        let count = items.len();
        let past: Vec<f32> = items.iter().flat_map(|item| item.past).collect();
        let next: Vec<f32> = items.iter().map(|item| item.next).collect();
        let shape = [count, Window::VALUES, 1];
        WindowBatch {
            past: Tensor::from_data(TensorData::new(past, shape), device),
            next: Tensor::from_data(TensorData::new(next, [count, 1]), device),
        }
    }
}
