//! The distributed backend decorator: operations that Burn's backends gain.

use burn::backend::{Backend as BurnBackend, backend_extension, tensor::FloatTensor};

use super::{Conjugate, GradientHook, staged};

/// Collective operations on backend primitives, over Flex, the CubeCL backends, Autodiff and Fusion.
///
/// Every default body goes through host memory with operations of [`Backend`](BurnBackend), so
/// that it is right on each of them; `Autodiff` adds the backward passes.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(any(feature = "cpu", feature = "cuda")),
    Autodiff,
    Fusion: cfg(feature = "fusion")
)]
pub trait DistributedBackend: BurnBackend {
    /// Runs the forward step; on `Autodiff` the gradient takes the backward step.
    #[fusion(default)]
    fn dist_apply(tensor: FloatTensor<Self>, conjugate: Conjugate) -> FloatTensor<Self> {
        staged::run::<Self>(tensor, &conjugate)
    }

    /// As `dist_apply`, placed in the backward order right after the consumers that follow `rung`.
    #[fusion(default)]
    fn dist_apply_at(
        tensor: FloatTensor<Self>,
        rung: FloatTensor<Self>,
        conjugate: Conjugate,
    ) -> FloatTensor<Self> {
        drop(rung);
        staged::run::<Self>(tensor, &conjugate)
    }

    /// The tensor as it is; on `Autodiff` its gradient goes to the hook and not to the leaf.
    #[fusion(default)]
    fn dist_hook(
        tensor: FloatTensor<Self>,
        rung: FloatTensor<Self>,
        hook: GradientHook,
    ) -> FloatTensor<Self> {
        drop((rung, hook));
        tensor
    }

    /// One rung of a ladder: a node that is one step deeper than `below`.
    #[fusion(default)]
    fn dist_rung(below: FloatTensor<Self>) -> FloatTensor<Self> {
        below
    }
}

#[cfg(feature = "flex")]
impl DistributedBackend for burn::backend::Flex {}

#[cfg(any(feature = "cpu", feature = "cuda"))]
impl DistributedBackend for burn::backend::Cube {}
