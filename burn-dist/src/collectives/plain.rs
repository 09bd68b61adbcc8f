//! Collectives on tensors of every kind. Shapes are per rank, `n` is the size of the group.

use burn::tensor::{
    Device, Tensor, TensorData,
    kind::{Basic, Kind},
};

use crate::backend::{self, Conjugate, Step};
use crate::communicator::{HostBuffer, Operation, ReduceOp};
use crate::error::Result;
use crate::group::ProcessGroup;

/// `[..] -> [..]`: the reduction over ranks, on every rank.
///
/// Backward, for `Sum` and `Mean`: all_reduce with the same operation, the adjoint of the map from
/// all ranks' inputs to all ranks' outputs. For a loss that every rank computes alike use
/// [`reduce_from_region`](super::reduce_from_region), whose backward sends nothing.
///
/// # Errors
/// A tracked float tensor with another operation has no gradient and is refused before anything is
/// sent; else what the group met.
#[track_caller]
pub fn all_reduce<const D: usize, K: Basic>(
    tensor: Tensor<D, K>,
    op: ReduceOp,
    group: &ProcessGroup,
) -> Result<Tensor<D, K>> {
    if K::KIND != Kind::Float {
        return on_host(tensor, 0, Operation::AllReduce(op), group);
    }
    let tensor = as_float(tensor);
    check_gradient(&tensor, op, "all_reduce", group)?;
    let step = Step::AllReduce(op);
    let output = backend::apply(tensor, Conjugate::new(step.clone(), step, group), None)?;
    Ok(from_float(output))
}

/// `[.., d, ..] -> [.., d/n, ..]`: this rank's part of the reduction along `dim`.
///
/// Backward, for `Sum` and `Mean`: all_gather along `dim` (divided by `n` for `Mean`).
///
/// # Errors
/// `d` not a multiple of `n`, or a tracked tensor with another operation: refused before anything
/// is sent; else what the group met.
#[track_caller]
pub fn reduce_scatter<const D: usize, K: Basic>(
    tensor: Tensor<D, K>,
    op: ReduceOp,
    dim: usize,
    group: &ProcessGroup,
) -> Result<Tensor<D, K>> {
    if K::KIND != Kind::Float {
        Step::ReduceScatter { op, dim }.output_shape(&tensor.dims(), group)?;
        return on_host(tensor, dim, Operation::ReduceScatter(op), group);
    }
    let tensor = as_float(tensor);
    check_gradient(&tensor, op, "reduce_scatter", group)?;
    // The adjoint of a mean divides after the gather, so a tracked mean is a sum and a division.
    let divide = op == ReduceOp::Mean && tensor.is_autodiff();
    let op = if divide { ReduceOp::Sum } else { op };
    let pair = Conjugate::new(
        Step::ReduceScatter { op, dim },
        Step::AllGather { dim },
        group,
    );
    let mut output = backend::apply(tensor, pair, None)?;
    if divide {
        output = output.div_scalar(group.size() as f64);
    }
    Ok(from_float(output))
}

/// `[.., d, ..] -> [.., n*d, ..]`: all parts along `dim` in group order.
///
/// Backward: reduce_scatter (sum) along `dim`.
///
/// # Errors
/// What the group met.
#[track_caller]
pub fn all_gather<const D: usize, K: Basic>(
    tensor: Tensor<D, K>,
    dim: usize,
    group: &ProcessGroup,
) -> Result<Tensor<D, K>> {
    if K::KIND != Kind::Float {
        Step::AllGather { dim }.output_shape(&tensor.dims(), group)?;
        return on_host(tensor, dim, Operation::AllGather, group);
    }
    let backward = Step::ReduceScatter {
        op: ReduceOp::Sum,
        dim,
    };
    let pair = Conjugate::new(Step::AllGather { dim }, backward, group);
    Ok(from_float(backend::apply(as_float(tensor), pair, None)?))
}

/// `[.., s, .., c, ..] -> [.., s/n, .., n*c, ..]`: part `i` of `split_dim` goes to index `i`, what
/// arrives is joined along `concat_dim` in group order. Float tensors.
///
/// Backward: all_to_all with the two dims exchanged.
///
/// # Errors
/// `s` not a multiple of `n`: refused before anything is sent; else what the group met.
#[track_caller]
pub fn all_to_all<const D: usize>(
    tensor: Tensor<D>,
    split_dim: usize,
    concat_dim: usize,
    group: &ProcessGroup,
) -> Result<Tensor<D>> {
    let step = |split_dim, concat_dim| Step::AllToAll {
        split_dim,
        concat_dim,
    };
    let pair = Conjugate::new(
        step(split_dim, concat_dim),
        step(concat_dim, split_dim),
        group,
    );
    backend::apply(tensor, pair, None)
}

/// `[.., sum(send), ..] -> [.., sum(receive), ..]` along `dim`: `send[i]` rows go to index `i`,
/// `receive[i]` rows come from it, in group order.
///
/// Backward: all_to_all with the counts exchanged.
///
/// # Errors
/// Counts that do not add up are refused before anything is sent; counts that do not match the
/// peers' are a [`DistError::Mismatch`](crate::DistError::Mismatch).
#[track_caller]
pub fn all_to_all_uneven<const D: usize, K: Basic>(
    tensor: Tensor<D, K>,
    dim: usize,
    send: &[usize],
    receive: &[usize],
    group: &ProcessGroup,
) -> Result<Tensor<D, K>> {
    let step = |send: &[usize], receive: &[usize]| Step::AllToAllUneven {
        dim,
        send: send.to_vec(),
        receive: receive.to_vec(),
    };
    if K::KIND != Kind::Float {
        step(send, receive).output_shape(&tensor.dims(), group)?;
        let operation = Operation::AllToAll {
            send_counts: send.to_vec(),
            recv_counts: receive.to_vec(),
        };
        return on_host(tensor, dim, operation, group);
    }
    let pair = Conjugate::new(step(send, receive), step(receive, send), group);
    Ok(from_float(backend::apply(as_float(tensor), pair, None)?))
}

/// `[..] -> [..]`: the root's tensor, on every rank.
///
/// Backward: the sum of all ranks' gradients on the root, zeros elsewhere.
///
/// # Errors
/// A root outside the group is refused before anything is sent; else what the group met.
#[track_caller]
pub fn broadcast<const D: usize, K: Basic>(
    tensor: Tensor<D, K>,
    root: usize,
    group: &ProcessGroup,
) -> Result<Tensor<D, K>> {
    if K::KIND != Kind::Float {
        return on_host(tensor, 0, Operation::Broadcast { root }, group);
    }
    let pair = Conjugate::new(Step::Broadcast { root }, Step::ReduceToRoot { root }, group);
    Ok(from_float(backend::apply(as_float(tensor), pair, None)?))
}

/// `[k, ..] -> [n*k, ..]` on the root, `None` elsewhere. No gradient: detach first.
///
/// # Errors
/// A tracked tensor is refused before anything is sent; else what the group met.
#[track_caller]
pub fn gather<const D: usize, K: Basic>(
    tensor: Tensor<D, K>,
    root: usize,
    group: &ProcessGroup,
) -> Result<Option<Tensor<D, K>>> {
    refuse_tracked(&tensor, "gather", group)?;
    let output = on_host(tensor, 0, Operation::Gather { root }, group)?;
    Ok((group.index() == root).then_some(output))
}

/// `[n*k, ..]` on the root, `None` elsewhere `-> [k, ..]`. No gradient: detach first.
///
/// `device` is where the output lies on ranks that bring no tensor.
///
/// # Errors
/// No tensor on the root, or a tracked one, is refused before anything is sent; else what the group
/// met.
#[track_caller]
pub fn scatter<const D: usize, K: Basic>(
    tensor: Option<Tensor<D, K>>,
    root: usize,
    device: &Device,
    group: &ProcessGroup,
) -> Result<Tensor<D, K>> {
    let tensor = match tensor {
        Some(tensor) if group.index() == root => tensor,
        None if group.index() == root => {
            return Err(group.invalid_call(
                "scatter",
                "the root brought no tensor",
                "pass Some(tensor) on the root",
            ));
        }
        _ => Tensor::empty([0; D], device),
    };
    refuse_tracked(&tensor, "scatter", group)?;
    on_host(tensor, 0, Operation::Scatter { root }, group)
}

/// Sends the whole tensor to index `to`, which calls [`recv`]. No gradient: detach first.
///
/// # Errors
/// A tracked tensor is refused before anything is sent; else what the group met.
#[track_caller]
pub fn send<const D: usize, K: Basic>(
    tensor: Tensor<D, K>,
    to: usize,
    group: &ProcessGroup,
) -> Result<()> {
    refuse_tracked(&tensor, "send", group)?;
    let operation = Operation::SendRecv {
        to: Some(to),
        from: None,
        receive: vec![0],
    };
    group
        .run(operation, HostBuffer::from(tensor.into_data()))
        .map(drop)
}

/// Receives a tensor of `shape` from index `from`, which calls [`send`].
///
/// The sender's element type must be that of `device` for this kind.
///
/// # Errors
/// Another shape or element type is a [`DistError::Mismatch`](crate::DistError::Mismatch) on both
/// sides; else what the group met.
#[track_caller]
pub fn recv<const D: usize, K: Basic>(
    shape: [usize; D],
    from: usize,
    device: &Device,
    group: &ProcessGroup,
) -> Result<Tensor<D, K>> {
    let nothing = Tensor::<1, K>::empty([0], device);
    let operation = Operation::SendRecv {
        to: None,
        from: Some(from),
        receive: shape.to_vec(),
    };
    let dtype = nothing.dtype();
    let received = group.run(operation, HostBuffer::from(nothing.into_data()))?;
    Ok(Tensor::from_data(
        TensorData::from(received),
        (device, dtype),
    ))
}

/// Sends the whole tensor to index `to` and receives one of shape `receive` from index `from`, at
/// the same time: a whole ring of these cannot block. Float tensors.
///
/// Backward: the gradient travels the other way.
///
/// # Errors
/// What the group met.
#[track_caller]
pub fn send_recv<const D: usize>(
    tensor: Tensor<D>,
    to: usize,
    from: usize,
    receive: [usize; D],
    group: &ProcessGroup,
) -> Result<Tensor<D>> {
    let forward = Step::SendRecv {
        to,
        from,
        receive: receive.to_vec(),
    };
    let backward = Step::SendRecv {
        to: from,
        from: to,
        receive: tensor.dims().to_vec(),
    };
    backend::apply(tensor, Conjugate::new(forward, backward, group), None)
}

fn as_float<const D: usize, K: Basic>(tensor: Tensor<D, K>) -> Tensor<D> {
    Tensor::from_dispatch(tensor.into_dispatch())
}

fn from_float<const D: usize, K: Basic>(tensor: Tensor<D>) -> Tensor<D, K> {
    Tensor::from_dispatch(tensor.into_dispatch())
}

fn check_gradient<const D: usize>(
    tensor: &Tensor<D>,
    op: ReduceOp,
    operation: &str,
    group: &ProcessGroup,
) -> Result<()> {
    if matches!(op, ReduceOp::Sum | ReduceOp::Mean) || !tensor.is_autodiff() {
        return Ok(());
    }
    Err(group.invalid_call(
        operation,
        format!("{op:?} of a tensor on an autodiff device has no gradient"),
        "reduce `tensor.inner()` or use Sum or Mean",
    ))
}

fn refuse_tracked<const D: usize, K: Basic>(
    tensor: &Tensor<D, K>,
    operation: &str,
    group: &ProcessGroup,
) -> Result<()> {
    if K::KIND != Kind::Float || !as_float(tensor.clone()).is_autodiff() {
        return Ok(());
    }
    Err(group.invalid_call(
        operation,
        "it has no gradient, and the tensor is on an autodiff device",
        "pass `tensor.inner()`, or use send_recv, all_gather or broadcast, which have one",
    ))
}

/// Calls through host memory on `dim`, for kinds without gradients.
#[track_caller]
fn on_host<const D: usize, K: Basic>(
    tensor: Tensor<D, K>,
    dim: usize,
    operation: Operation,
    group: &ProcessGroup,
) -> Result<Tensor<D, K>> {
    let (device, dtype) = (tensor.device(), tensor.dtype());
    let front = if dim == 0 {
        tensor
    } else {
        tensor.swap_dims(0, dim)
    };
    let output = group.run(operation, HostBuffer::from(front.into_data()))?;
    let output = Tensor::from_data(TensorData::from(output), (&device, dtype));
    Ok(if dim == 0 {
        output
    } else {
        output.swap_dims(0, dim)
    })
}
