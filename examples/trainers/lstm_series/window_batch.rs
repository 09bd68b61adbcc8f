//! [`WindowBatch`]: what the forecaster is given at once.

use burn::tensor::Tensor;

/// `B` windows of `T` values and what comes next.
#[derive(Debug, Clone)]
pub struct WindowBatch {
    /// `[B, T, 1]`.
    pub past: Tensor<3>,
    /// `[B, 1]`.
    pub next: Tensor<2>,
}
