//! [`Started`]: a step under way while its rank computes.

use std::panic::Location;

use burn::backend::{
    Backend, TensorMetadata,
    tensor::{Device, FloatTensor},
};
use burn::tensor::{DType, Shape};

use super::{CallPlace, CollectiveCall, StartedCall, Step, staged};
use crate::communicator::Operation;
use crate::error::Result;
use crate::group::ProcessGroup;

/// A started all_reduce, reduce_scatter or all_gather. A failure poisons the group, and the result is NaN
/// throughout, as in [`staged::run`].
pub(super) struct Started<B: Backend> {
    call: Result<StartedCall<B>>,
    group: ProcessGroup,
    /// The dim that stood in front while travelling.
    dim: usize,
    output: Vec<usize>,
    dtype: DType,
    device: Device<B>,
}

impl<B: CollectiveCall> Started<B> {
    /// Starts `step`, or carries it out at once unless `beside`.
    ///
    /// # Panics
    /// For a step that does not travel as one array.
    pub(super) fn new(
        tensor: FloatTensor<B>,
        step: &Step,
        group: &ProcessGroup,
        site: &'static Location<'static>,
        beside: bool,
    ) -> Self {
        let (shape, dtype, device) = (tensor.shape(), tensor.dtype(), tensor.device());
        let (operation, dim) = match step {
            Step::AllReduce(op) => (Operation::AllReduce(*op), 0),
            Step::ReduceScatter { op, dim } => (Operation::ReduceScatter(*op), *dim),
            Step::AllGather { dim } => (Operation::AllGather, *dim),
            _ => unreachable!("invariant: {} is not started", step.name()),
        };
        let output = step.output_shape(&shape, group);
        let call = output.as_ref().map_err(Clone::clone).and_then(|_| {
            let front = match dim {
                0 => tensor,
                dim => B::float_swap_dims(tensor, 0, dim),
            };
            let place = CallPlace {
                group,
                device: &device,
                site,
                label: None,
            };
            B::start_call(front, operation, place, beside)
        });
        Self {
            call,
            group: group.clone(),
            dim,
            output: output.unwrap_or_else(|_| shape.to_vec()),
            dtype,
            device,
        }
    }

    /// Waits for the result.
    pub(super) fn wait(self) -> FloatTensor<B> {
        match self.call.and_then(StartedCall::wait) {
            Ok(output) => match self.dim {
                0 => output,
                dim => B::float_swap_dims(output, 0, dim),
            },
            Err(failure) => {
                if self.group.check().is_ok() {
                    self.group.abort(failure);
                }
                staged::nan::<B>(self.output, self.dtype, &self.device)
            }
        }
    }
}

/// Joins the leading dims: `[.., d] -> [rows, d]`.
pub(super) fn rows<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let shape = tensor.shape().to_vec();
    let width = shape.last().copied().unwrap_or(1);
    let count = shape[..shape.len().saturating_sub(1)].iter().product();
    B::float_reshape(tensor, Shape::new([count, width]))
}
