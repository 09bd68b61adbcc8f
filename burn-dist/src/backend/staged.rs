//! Runs a [`Step`] on any backend; by default through host memory.

use burn::backend::{
    Backend, Scalar, Slice, TensorMetadata,
    tensor::{Device, FloatTensor},
    try_read_sync,
};
use burn::tensor::{DType, Shape};

use super::{CallPlace, CollectiveCall, Conjugate, Step};
use crate::communicator::{HostBuffer, Operation, ReduceOp};
use crate::error::Result;
use crate::group::ProcessGroup;

/// Reads a tensor into host memory, contiguous. On Flex a uniquely held tensor is not copied.
pub(super) fn read<B: Backend>(tensor: FloatTensor<B>, group: &ProcessGroup) -> Result<HostBuffer> {
    try_read_sync(B::float_into_data(tensor))
        .expect("invariant: native targets can block on a read")
        .map(HostBuffer::from)
        .map_err(|error| {
            group.invalid_call(
                "reading a tensor",
                error.to_string(),
                "look at the device's own error above",
            )
        })
}

pub(super) fn write<B: Backend>(buffer: HostBuffer, device: &Device<B>) -> FloatTensor<B> {
    B::float_from_data(buffer.into(), device)
}

/// Runs the forward step. On failure the group is poisoned and the result is NaN throughout, so that it can
/// never be taken for good: backward passes cannot return an error.
pub(super) fn run<B: CollectiveCall>(
    tensor: FloatTensor<B>,
    conjugate: &Conjugate,
) -> FloatTensor<B> {
    let (shape, dtype, device) = (tensor.shape(), tensor.dtype(), tensor.device());
    let (step, group) = (&conjugate.forward, &conjugate.group);
    let place = CallPlace {
        group,
        device: &device,
        site: conjugate.site,
        label: None,
    };
    match try_run::<B>(tensor, step, place) {
        Ok(output) => output,
        Err(failure) => {
            let shape = step
                .output_shape(&shape, group)
                .unwrap_or_else(|_| shape.to_vec());
            if group.check().is_ok() {
                group.abort(failure);
            }
            nan::<B>(shape, dtype, &device)
        }
    }
}

pub(super) fn nan<B: Backend>(
    shape: Vec<usize>,
    dtype: DType,
    device: &Device<B>,
) -> FloatTensor<B> {
    B::float_full(
        Shape::from(shape),
        Scalar::from(f64::NAN),
        device,
        dtype.into(),
    )
}

fn try_run<B: CollectiveCall>(
    tensor: FloatTensor<B>,
    step: &Step,
    place: CallPlace<'_, B>,
) -> Result<FloatTensor<B>> {
    let group = place.group;
    let shape = tensor.shape().to_vec();
    let output_shape = step.output_shape(&shape, group)?;
    match step {
        Step::Identity => Ok(tensor),
        Step::Slice { dim } => Ok(own_part::<B>(tensor, *dim, &output_shape, group)),
        Step::AllReduce(op) => call::<B>(tensor, Operation::AllReduce(*op), place),
        Step::ReduceScatter { op, dim } => {
            along::<B>(tensor, *dim, Operation::ReduceScatter(*op), place)
        }
        Step::AllGather { dim } => along::<B>(tensor, *dim, Operation::AllGather, place),
        Step::AllToAllUneven { dim, send, receive } => {
            let operation = Operation::AllToAll {
                send_counts: send.clone(),
                recv_counts: receive.clone(),
            };
            along::<B>(tensor, *dim, operation, place)
        }
        Step::AllToAll {
            split_dim,
            concat_dim,
        } => all_to_all::<B>(tensor, *split_dim, *concat_dim, output_shape, place),
        Step::Broadcast { root } => call::<B>(tensor, Operation::Broadcast { root: *root }, place),
        Step::ReduceToRoot { root } => {
            let sum = call::<B>(tensor, Operation::AllReduce(ReduceOp::Sum), place)?;
            if group.index() == *root {
                return Ok(sum);
            }
            let dtype = sum.dtype().into();
            Ok(B::float_full(
                sum.shape(),
                Scalar::from(0.0),
                place.device,
                dtype,
            ))
        }
        Step::SendRecv { to, from, receive } => {
            let operation = Operation::SendRecv {
                to: Some(*to),
                from: Some(*from),
                receive: receive.clone(),
            };
            call::<B>(tensor, operation, place)
        }
    }
}

fn call<B: CollectiveCall>(
    tensor: FloatTensor<B>,
    operation: Operation,
    place: CallPlace<'_, B>,
) -> Result<FloatTensor<B>> {
    B::start_call(tensor, operation, place, false)?.wait()
}

/// Calls on the first dim; another dim is brought to the front and back.
fn along<B: CollectiveCall>(
    tensor: FloatTensor<B>,
    dim: usize,
    operation: Operation,
    place: CallPlace<'_, B>,
) -> Result<FloatTensor<B>> {
    if dim == 0 {
        return call::<B>(tensor, operation, place);
    }
    let front = B::float_swap_dims(tensor, 0, dim);
    let output = call::<B>(front, operation, place)?;
    Ok(B::float_swap_dims(output, 0, dim))
}

fn own_part<B: Backend>(
    tensor: FloatTensor<B>,
    dim: usize,
    output_shape: &[usize],
    group: &ProcessGroup,
) -> FloatTensor<B> {
    let slices: Vec<Slice> = output_shape
        .iter()
        .enumerate()
        .map(|(d, &size)| {
            let start = if d == dim { group.index() * size } else { 0 };
            Slice::from(start..start + size)
        })
        .collect();
    B::float_slice(tensor, &slices)
}

/// `[.., s, .., c, ..] -> [.., s/n, .., n*c, ..]`: the part index moves from the split dim to the
/// front, travels, and settles before the concat dim.
fn all_to_all<B: CollectiveCall>(
    tensor: FloatTensor<B>,
    split_dim: usize,
    concat_dim: usize,
    output_shape: Vec<usize>,
    place: CallPlace<'_, B>,
) -> Result<FloatTensor<B>> {
    let n = place.group.size();
    let shape = tensor.shape().to_vec();
    let num_dims = shape.len();
    let mut cut = shape.clone();
    cut[split_dim] /= n;
    cut.insert(split_dim, n);
    let parts = B::float_reshape(tensor, Shape::from(cut));
    let to_front: Vec<usize> = std::iter::once(split_dim)
        .chain((0..=num_dims).filter(|&d| d != split_dim))
        .collect();
    let parts = B::float_permute(parts, &to_front);
    let operation = Operation::AllToAll {
        send_counts: vec![1; n],
        recv_counts: vec![1; n],
    };
    let arrived = call::<B>(parts, operation, place)?;
    let mut settle: Vec<usize> = (1..=num_dims).collect();
    settle.insert(concat_dim, 0);
    let joined = B::float_permute(arrived, &settle);
    Ok(B::float_reshape(joined, Shape::from(output_shape)))
}
