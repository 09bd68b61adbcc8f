//! Single passes over tensors: operations that Burn's backends gain besides collectives.

use burn::backend::{
    Backend as BurnBackend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};

use super::kernel_twins as twins;
use crate::kernels::AdamWStep;

/// Kernels on backend primitives, without autodiff. Every default body is the twin made of tensor operations.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(any(feature = "cpu", feature = "cuda")),
    Fusion: cfg(feature = "fusion")
)]
pub trait KernelBackend: BurnBackend {
    /// Parameter, gradient and two moments of one shape and type to parameter and moments.
    #[fusion(meta = |parameter, _, moment_1, moment_2, _| (parameter.clone(), moment_1.clone(), moment_2.clone()))]
    fn kernel_adamw(
        parameter: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        moment_1: FloatTensor<Self>,
        moment_2: FloatTensor<Self>,
        step: AdamWStep,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        twins::adamw::<Self>(parameter, gradient, moment_1, moment_2, &step)
    }

    /// `[rows, columns], [rows, 1] -> [rows, ROW_PARTS]` in 32 or 64 bits: see
    /// [`row_parts`](crate::kernels::row_parts). Targets that are not here are negative.
    #[fusion(default)]
    fn kernel_row_parts(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
        tokens: usize,
    ) -> FloatTensor<Self> {
        twins::row_parts::<Self>(logits, targets, tokens)
    }

    /// `[rows, columns], [rows, 1], [rows, ROW_SLOPES] -> [rows, columns]`: see
    /// [`row_slopes`](crate::kernels::row_slopes).
    #[fusion(default)]
    fn kernel_row_slopes(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
        slopes: FloatTensor<Self>,
        tokens: usize,
    ) -> FloatTensor<Self> {
        twins::row_slopes::<Self>(logits, targets, slopes, tokens)
    }
}
