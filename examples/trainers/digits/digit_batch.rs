//! [`DigitBatch`]: what the net is given at once.

use burn::tensor::{Int, Tensor};

/// `B` images and their digits.
#[derive(Debug, Clone)]
pub struct DigitBatch {
    /// `[B, 1, 8, 8]`, from 0 to 1.
    pub images: Tensor<4>,
    /// `[B]`, from 0 to 9.
    pub labels: Tensor<1, Int>,
}
