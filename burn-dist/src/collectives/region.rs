//! The conjugate pairs at the edges of a parallel region: what a tensor meets forward and what its
//! gradient meets backward. Float tensors; shapes are per rank, `n` is the size of the group.
//!
//! Inside the region the ranks compute different parts of one model; outside they all compute the
//! same. (Megatron-LM, arXiv 1909.08053, section 3, the functions f and g; sequence parallelism,
//! arXiv 2205.05198, section 4.2.2.)
//!
//! | function | forward | backward |
//! |---|---|---|
//! | [`copy_to_region`] | nothing | all_reduce (sum) |
//! | [`reduce_from_region`] | all_reduce (sum) | nothing |
//! | [`gather_from_region`] | all_gather | own part |
//! | [`scatter_to_region`] | own part | all_gather |
//! | [`gather_to_region`] | all_gather | reduce_scatter (sum) |
//! | [`reduce_scatter_from_region`] | reduce_scatter (sum) | all_gather |

use burn::tensor::Tensor;

use crate::backend::{self, Conjugate, Step};
use crate::communicator::ReduceOp;
use crate::error::Result;
use crate::group::ProcessGroup;

#[track_caller]
fn pair<const D: usize>(
    tensor: Tensor<D>,
    forward: Step,
    backward: Step,
    group: &ProcessGroup,
) -> Result<Tensor<D>> {
    forward.output_shape(&tensor.dims(), group)?;
    if group.size() == 1 {
        return Ok(tensor);
    }
    backend::apply(tensor, Conjugate::new(forward, backward, group), None)
}

fn sum_scatter(dim: usize) -> Step {
    Step::ReduceScatter {
        op: ReduceOp::Sum,
        dim,
    }
}

/// `[..] -> [..]`: forward nothing, backward all_reduce (sum). Megatron's f.
///
/// # Errors
/// What the group met.
#[track_caller]
pub fn copy_to_region<const D: usize>(
    tensor: Tensor<D>,
    group: &ProcessGroup,
) -> Result<Tensor<D>> {
    let backward = Step::AllReduce(ReduceOp::Sum);
    pair(tensor, Step::Identity, backward, group)
}

/// `[..] -> [..]`: forward all_reduce (sum), backward nothing. Megatron's g.
///
/// # Errors
/// What the group met.
#[track_caller]
pub fn reduce_from_region<const D: usize>(
    tensor: Tensor<D>,
    group: &ProcessGroup,
) -> Result<Tensor<D>> {
    let forward = Step::AllReduce(ReduceOp::Sum);
    pair(tensor, forward, Step::Identity, group)
}

/// `[.., d, ..] -> [.., n*d, ..]`: forward all_gather, backward this rank's part of the gradient.
///
/// # Errors
/// What the group met.
#[track_caller]
pub fn gather_from_region<const D: usize>(
    tensor: Tensor<D>,
    dim: usize,
    group: &ProcessGroup,
) -> Result<Tensor<D>> {
    pair(tensor, Step::AllGather { dim }, Step::Slice { dim }, group)
}

/// `[.., d, ..] -> [.., d/n, ..]`: forward this rank's part, backward all_gather.
///
/// # Errors
/// `d` not a multiple of `n`; else what the group met.
#[track_caller]
pub fn scatter_to_region<const D: usize>(
    tensor: Tensor<D>,
    dim: usize,
    group: &ProcessGroup,
) -> Result<Tensor<D>> {
    pair(tensor, Step::Slice { dim }, Step::AllGather { dim }, group)
}

/// `[.., d, ..] -> [.., n*d, ..]`: forward all_gather, backward reduce_scatter (sum). The way from a
/// sequence-split part into a tensor-parallel region.
///
/// # Errors
/// What the group met.
#[track_caller]
pub fn gather_to_region<const D: usize>(
    tensor: Tensor<D>,
    dim: usize,
    group: &ProcessGroup,
) -> Result<Tensor<D>> {
    pair(tensor, Step::AllGather { dim }, sum_scatter(dim), group)
}

/// `[.., d, ..] -> [.., d/n, ..]`: forward reduce_scatter (sum), backward all_gather. The way back.
///
/// # Errors
/// `d` not a multiple of `n`; else what the group met.
#[track_caller]
pub fn reduce_scatter_from_region<const D: usize>(
    tensor: Tensor<D>,
    dim: usize,
    group: &ProcessGroup,
) -> Result<Tensor<D>> {
    pair(tensor, sum_scatter(dim), Step::AllGather { dim }, group)
}
