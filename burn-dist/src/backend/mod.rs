//! The distributed backend decorator: the only place that knows Burn's backend traits.
//!
//! | file | what |
//! |---|---|
//! | `step.rs`, `conjugate.rs` | a collective in one direction, and the pair forward and backward; no tensors |
//! | `extension.rs` | the operations, for every backend |
//! | `autodiff.rs` | their backward passes |
//! | `staged.rs` | a step carried out through host memory |
//! | `ladder.rs` | where in the backward pass an operation on a leaf runs |
//! | `gradient_hook.rs` | a gradient, the moment it is ready |

mod autodiff;
mod conjugate;
mod extension;
mod gradient_hook;
mod ladder;
mod staged;
mod step;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

pub use conjugate::Conjugate;
pub use extension::DistributedBackend;
pub use gradient_hook::{GradientHook, GradientSink};
pub use ladder::{Ladder, RungTensor};
pub use step::Step;

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
