//! The distributed backend decorator: the only place that knows Burn's backend traits.
//!
//! | file | what |
//! |---|---|
//! | `step.rs`, `conjugate.rs` | a collective in one direction, and the pair forward and backward; no tensors |
//! | `extension.rs` | the operations, for every backend |
//! | `autodiff.rs` | their backward passes |
//! | `staged.rs` | a step carried out by calls on tensors |
//! | `collective_call.rs`, `call_place.rs`, `started_call.rs` | such a call, by default through host memory |
//! | `cube_collective.rs` | on CubeCL's runtimes, CUDA's in device memory |
//! | `ladder.rs` | where in the backward pass an operation on a leaf runs |
//! | `started_array.rs` | a collective on a tensor, started for users |
//! | `device_array.rs` | a tensor of any backend and shape |
//! | `flat_memory.rs`, `flat_array.rs`, `flat_work.rs` | arrays that are collected in, and travel, in host or in device memory |
//! | `device_sums.rs` | sums on such arrays in device memory |
//! | `gradient_hook.rs` | a gradient, the moment it is ready |
//! | `parameter_source.rs`, `unit_memory.rs` | parameters whose values are elsewhere until they are used |
//! | `backward_mark.rs` | a place in the backward pass |
//! | `column_product.rs`, `started.rs` | a product whose collectives run beside it |
//! | `row_loss.rs` | losses whose gradient is written where the logits were |
//! | `seed.rs` | a backward pass that starts with a given gradient |
//! | `deferred_product.rs` | a product whose weight's gradient is left for later |
//! | `kernel_calls.rs`, `kernel_choice.rs` | single passes over tensors |
//! | `kernel_backend.rs` | the same, for every backend |
//! | `flex_arrays.rs`, `flex_steps.rs` | Flex's tensors as arrays, and optimizers on them |
//! | `kernel_contract/` | what all of them are tested for |
//! | `kernel_twins.rs`, `kernel_flex.rs`, `cube/` | as chains of tensor operations, on Flex, and on CubeCL's runtimes |
//! | `unshard.rs` | such a parameter's values, and its gradient |

mod autodiff;
mod backward_mark;
mod call_place;
mod collective_call;
mod column_product;
mod conjugate;
#[cfg(any(feature = "cpu", feature = "cuda"))]
mod cube;
#[cfg(any(feature = "cpu", feature = "cuda"))]
mod cube_collective;
mod deferred_product;
mod device_array;
mod device_sums;
mod extension;
mod flat_array;
mod flat_memory;
mod flat_work;
#[cfg(feature = "flex")]
mod flex_arrays;
#[cfg(feature = "flex")]
mod flex_steps;
mod gradient_hook;
mod kernel_backend;
mod kernel_calls;
mod kernel_choice;
#[cfg(all(test, feature = "flex"))]
mod kernel_contract;
#[cfg(feature = "flex")]
mod kernel_flex;
mod kernel_twins;
mod ladder;
mod parameter_source;
mod row_loss;
mod seed;
mod staged;
mod started;
mod started_array;
mod started_call;
mod step;
mod unit_memory;
mod unshard;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

pub use backward_mark::{BackwardMark, MarkTensor};
pub use call_place::CallPlace;
pub use collective_call::CollectiveCall;
pub use column_product::ColumnProduct;
pub use conjugate::Conjugate;
pub use deferred_product::{DeferredProduct, DeferredProducts, joins_rows};
pub use device_array::DeviceArray;
pub use extension::DistributedBackend;
pub use flat_array::FlatArray;
pub use flat_memory::FlatMemory;
pub use flat_work::FlatWork;
pub use gradient_hook::{GradientHook, GradientSink};
pub use kernel_backend::KernelBackend;
pub use kernel_calls::{
    adamw, adamw_with_copies, pack, rank_sum, row_loss, row_parts, row_slopes, sgd, softmax_merge,
    square_sum, unpack,
};
pub use kernel_choice::KernelChoice;
pub use ladder::{Ladder, RungTensor};
pub use parameter_source::{LeafId, LeafSlot, ParameterSource, ParameterUse, Pass};
pub use started_array::{StartRequest, StartedArray};
pub use started_call::StartedCall;
pub use step::Step;
pub use unit_memory::{OwnSlot, UnitMemory};

use crate::error::Result;

/// Applies a conjugate pair to a tensor; with a rung, the backward step runs beside its layer.
///
/// # Errors
/// [`DistError::InvalidCall`](crate::DistError::InvalidCall) before anything is sent if the shape
/// does not fit; else what the group met. A failure in the backward pass poisons the group, turns
/// the gradient to NaN, and is returned by the next call or by
/// [`ProcessGroup::check`](crate::ProcessGroup::check).
pub fn apply<const D: usize>(
    tensor: Tensor<D>,
    conjugate: Conjugate,
    rung: Option<&RungTensor>,
) -> Result<Tensor<D>> {
    let group = conjugate.group.clone();
    group.check()?;
    conjugate.forward.output_shape(&tensor.dims(), &group)?;
    let tensor = tensor.into_dispatch();
    let output = match rung {
        None => Dispatch::dist_apply(tensor, conjugate),
        Some(rung) => Dispatch::dist_apply_at(tensor, rung.0.clone().into_dispatch(), conjugate),
    };
    group.check()?;
    Ok(Tensor::from_dispatch(output))
}

/// Attaches a hook: the tensor as it is, its gradient goes to the hook's sink.
pub fn hook<const D: usize>(tensor: Tensor<D>, rung: &RungTensor, hook: GradientHook) -> Tensor<D> {
    let rung = rung.0.clone().into_dispatch();
    Tensor::from_dispatch(Dispatch::dist_hook(tensor.into_dispatch(), rung, hook))
}

/// A parameter from its source, made from the leaf that it is kept in; its gradient goes to the source,
/// before `mark` is reached.
pub fn unshard<const D: usize, const S: usize>(
    shard: Tensor<S>,
    mark: &MarkTensor,
    parameter: ParameterUse,
) -> Tensor<D> {
    let mark = mark.0.clone().into_dispatch();
    Tensor::from_dispatch(Dispatch::dist_unshard(
        shard.into_dispatch(),
        mark,
        parameter,
    ))
}

/// As [`unshard`], for a leaf that takes no gradient.
pub fn unshard_untracked<const D: usize>(shard: Tensor<1>, parameter: ParameterUse) -> Tensor<D> {
    let mark = shard.clone().into_dispatch();
    Tensor::from_dispatch(Dispatch::dist_unshard(
        shard.into_dispatch(),
        mark,
        parameter,
    ))
}

/// A mark right above `rung`, reached before `below`.
pub fn mark(below: &MarkTensor, rung: &RungTensor, mark: BackwardMark) -> MarkTensor {
    let below = below.0.clone().into_dispatch();
    let rung = rung.0.clone().into_dispatch();
    MarkTensor(Tensor::from_dispatch(Dispatch::dist_mark(
        below, rung, mark,
    )))
}

/// `[.., s, h], [h, d/n] -> [.., s, d/n]`: the product with this rank's columns; see [`ColumnProduct`].
///
/// # Errors
/// As [`apply`].
pub fn column_product<const D: usize>(
    input: Tensor<D>,
    weight: Tensor<2>,
    column: ColumnProduct,
) -> Result<Tensor<D>> {
    let group = column.group.clone();
    group.check()?;
    let output =
        Dispatch::dist_column_product(input.into_dispatch(), weight.into_dispatch(), column);
    group.check()?;
    Ok(Tensor::from_dispatch(output))
}

/// `[.., h], [h, d] -> [.., d]`: a product whose weight's gradient goes to [`DeferredProducts`].
pub fn deferred_product<const D: usize>(
    input: Tensor<D>,
    weight: Tensor<2>,
    deferred: DeferredProduct,
) -> Tensor<D> {
    Tensor::from_dispatch(Dispatch::dist_deferred_product(
        input.into_dispatch(),
        weight.into_dispatch(),
        deferred,
    ))
}

/// `[..], [..] -> [1]`: zero, from which a backward pass gives `output` this gradient; the seeds of several
/// outputs are added up before it.
pub fn seed<const D: usize>(output: Tensor<D>, gradient: Tensor<D>) -> Tensor<1> {
    Tensor::from_dispatch(Dispatch::dist_seed(
        output.into_dispatch(),
        gradient.into_dispatch(),
    ))
}

/// Which leaf of the autodiff graph a tensor is; `None` without autodiff.
pub fn leaf_of<const D: usize>(tensor: &Tensor<D>) -> Option<LeafId> {
    let slot = LeafSlot::default();
    drop(Dispatch::dist_leaf(
        tensor.clone().into_dispatch(),
        slot.clone(),
    ));
    slot.0.get().copied()
}
