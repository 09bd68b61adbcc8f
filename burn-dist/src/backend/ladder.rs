//! [`Ladder`] and [`RungTensor`]: where in the backward pass an operation on a leaf runs.

use burn::backend::Dispatch;
use burn::tensor::{Device, Tensor};

use super::DistributedBackend;

/// Hands out rungs, each `stride` steps deeper than the one before.
///
/// Burn runs the backward pass by depth, deepest node first, and an operation on a leaf has depth
/// one: it would run last. A rung is an untracked node of known depth; given to the operation as a
/// second parent it lifts the operation to just above the rung, so that it runs right after its
/// consumers. A wrong stride costs overlap, never correctness.
#[derive(Debug)]
pub struct Ladder {
    top: Tensor<1>,
    stride: usize,
}

impl Ladder {
    /// A ladder on an autodiff device.
    pub fn new(device: &Device, stride: usize) -> Self {
        Self {
            top: Tensor::zeros([1], device),
            stride,
        }
    }

    /// The next rung, `stride` steps deeper than the last one.
    pub fn next_rung(&mut self) -> RungTensor {
        for _ in 0..self.stride {
            let below = self.top.clone().into_dispatch();
            self.top = Tensor::from_dispatch(Dispatch::dist_rung(below));
        }
        RungTensor(self.top.clone())
    }
}

/// A rung of a [`Ladder`].
#[derive(Debug, Clone)]
pub struct RungTensor(pub(super) Tensor<1>);
