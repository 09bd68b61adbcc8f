//! [`TensorWork`]: a started collective on a tensor.

use std::marker::PhantomData;

use burn::tensor::{
    DType, Device, Tensor, TensorData,
    kind::{Basic, Kind},
};

use crate::backend::StartedArray;
use crate::communicator::{HostBuffer, Operation, ReduceOp, Work};
use crate::error::Result;
use crate::group::ProcessGroup;

/// A started collective; [`TensorWork::wait`] consumes it and gives the tensor. Floats stay on their device where the
/// group [reaches it](crate::communicator::Communicator::device).
///
/// The output has no gradient: use it for communication beside the model.
#[must_use = "a started collective has no output before `wait`"]
#[derive(Debug)]
pub struct TensorWork<const D: usize, K: Basic = burn::tensor::Float> {
    started: Started,
    kind: PhantomData<K>,
}

#[derive(Debug)]
enum Started {
    Float(Box<StartedArray>),
    /// Other kinds go through host memory.
    Host(Work, Device, DType),
}

impl<const D: usize, K: Basic> TensorWork<D, K> {
    #[track_caller]
    fn start(tensor: Tensor<D, K>, operation: Operation, group: &ProcessGroup) -> Self {
        let started = match K::KIND {
            Kind::Float => {
                let tensor = Tensor::<D>::from_dispatch(tensor.into_dispatch());
                let started = StartedArray::start(tensor, operation, group, None);
                Started::Float(Box::new(started))
            }
            _ => {
                let (device, dtype) = (tensor.device().inner(), tensor.dtype());
                let work = group.start(operation, HostBuffer::from(tensor.into_data()));
                Started::Host(work, device, dtype)
            }
        };
        Self {
            started,
            kind: PhantomData,
        }
    }

    /// Whether `wait` would return at once.
    pub fn is_done(&self) -> bool {
        match &self.started {
            Started::Float(started) => started.is_done(),
            Started::Host(work, ..) => work.is_done(),
        }
    }

    /// Waits for the output.
    ///
    /// # Errors
    /// What the group met.
    pub fn wait(self) -> Result<Tensor<D, K>> {
        match self.started {
            Started::Float(started) => {
                let output = started.wait::<D>()?;
                Ok(Tensor::from_dispatch(output.into_dispatch()))
            }
            Started::Host(work, device, dtype) => {
                let output = TensorData::from(work.wait()?);
                Ok(Tensor::from_data(output, (&device, dtype)))
            }
        }
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
