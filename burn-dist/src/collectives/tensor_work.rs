//! [`TensorWork`]: a started collective on a tensor.

use std::marker::PhantomData;

use burn::tensor::{DType, Device, Tensor, TensorData, kind::Basic};

use crate::communicator::{HostBuffer, Operation, ReduceOp, Work};
use crate::error::Result;
use crate::group::ProcessGroup;

/// A started collective; [`TensorWork::wait`] consumes it and gives the tensor.
///
/// The output has no gradient: use it for communication beside the model.
#[must_use = "a started collective has no output before `wait`"]
#[derive(Debug)]
pub struct TensorWork<const D: usize, K: Basic = burn::tensor::Float> {
    work: Work,
    device: Device,
    dtype: DType,
    kind: PhantomData<K>,
}

impl<const D: usize, K: Basic> TensorWork<D, K> {
    #[track_caller]
    fn start(tensor: Tensor<D, K>, operation: Operation, group: &ProcessGroup) -> Self {
        let (device, dtype) = (tensor.device().inner(), tensor.dtype());
        Self {
            work: group.start(operation, HostBuffer::from(tensor.into_data())),
            device,
            dtype,
            kind: PhantomData,
        }
    }

    /// Whether `wait` would return at once.
    pub fn is_done(&self) -> bool {
        self.work.is_done()
    }

    /// Waits for the output.
    ///
    /// # Errors
    /// What the group met.
    pub fn wait(self) -> Result<Tensor<D, K>> {
        let output = TensorData::from(self.work.wait()?);
        Ok(Tensor::from_data(output, (&self.device, self.dtype)))
    }
}

/// Starts an all_reduce: `[..] -> [..]`.
#[track_caller]
pub fn start_all_reduce<const D: usize, K: Basic>(
    tensor: Tensor<D, K>,
    op: ReduceOp,
    group: &ProcessGroup,
) -> TensorWork<D, K> {
    TensorWork::start(tensor, Operation::AllReduce(op), group)
}

/// Starts a reduce_scatter along the first dim: `[n*k, ..] -> [k, ..]`.
#[track_caller]
pub fn start_reduce_scatter<const D: usize, K: Basic>(
    tensor: Tensor<D, K>,
    op: ReduceOp,
    group: &ProcessGroup,
) -> TensorWork<D, K> {
    TensorWork::start(tensor, Operation::ReduceScatter(op), group)
}

/// Starts an all_gather along the first dim: `[k, ..] -> [n*k, ..]`.
#[track_caller]
pub fn start_all_gather<const D: usize, K: Basic>(
    tensor: Tensor<D, K>,
    group: &ProcessGroup,
) -> TensorWork<D, K> {
    TensorWork::start(tensor, Operation::AllGather, group)
}
