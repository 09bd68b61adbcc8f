//! Single passes over tensors: operations that Burn's backends gain besides collectives.

use burn::backend::{
    Backend as BurnBackend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};

use burn::tensor::DType;

use super::kernel_twins as twins;
use crate::kernels::{AdamWStep, SgdStep, SquareSum};

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

    /// As [`kernel_adamw`](Self::kernel_adamw), of master weights: the last output is the parameter in another
    /// type.
    #[fusion(default)]
    fn kernel_adamw_copies(
        parameter: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        moment_1: FloatTensor<Self>,
        moment_2: FloatTensor<Self>,
        step: AdamWStep,
        copy: DType,
    ) -> (
        FloatTensor<Self>,
        FloatTensor<Self>,
        FloatTensor<Self>,
        FloatTensor<Self>,
    ) {
        let (parameter, moment_1, moment_2) =
            Self::kernel_adamw(parameter, gradient, moment_1, moment_2, step);
        let copy = Self::float_cast(parameter.clone(), copy.into());
        (parameter, moment_1, moment_2, copy)
    }

    /// Parameter, gradient and velocity of one shape and type to parameter and velocity.
    #[fusion(meta = |parameter, _, velocity, _| (parameter.clone(), velocity.clone()))]
    fn kernel_sgd(
        parameter: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        velocity: FloatTensor<Self>,
        step: SgdStep,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        twins::sgd::<Self>(parameter, gradient, velocity, &step)
    }

    /// `[n], [..] -> [n]`: a bucket whose elements from `start` on are those of a part, times a number. See
    /// [`scaled_copy`](crate::kernels::scaled_copy).
    #[fusion(default)]
    fn kernel_pack(
        bucket: FloatTensor<Self>,
        part: FloatTensor<Self>,
        start: usize,
        scale: f64,
    ) -> FloatTensor<Self> {
        twins::pack::<Self>(bucket, part, start, scale)
    }

    /// `[n] -> [len]`: elements from `start` on, times a number, in another type.
    #[fusion(default)]
    fn kernel_unpack(
        bucket: FloatTensor<Self>,
        start: usize,
        len: usize,
        scale: f64,
        dtype: DType,
    ) -> FloatTensor<Self> {
        twins::unpack::<Self>(bucket, start, len, scale, dtype)
    }

    /// The sum of squares of all elements of eight tensors, which may be empty: macros pass on no lists. On CubeCL's
    /// devices partial sums are made in 32 bits; elsewhere, and with Burn's fusion, it is exact.
    #[fusion(default)]
    #[allow(clippy::too_many_arguments)]
    fn kernel_square_sum(
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        third: FloatTensor<Self>,
        fourth: FloatTensor<Self>,
        fifth: FloatTensor<Self>,
        sixth: FloatTensor<Self>,
        seventh: FloatTensor<Self>,
        eighth: FloatTensor<Self>,
    ) -> SquareSum {
        twins::exact_square_sum::<Self>([
            first, second, third, fourth, fifth, sixth, seventh, eighth,
        ])
    }

    /// `[n, ..] -> [..]`: the sum over the first dim, or the mean, in order; 16-bit ones are added in 32 bits.
    #[fusion(default)]
    fn kernel_rank_sum(parts: FloatTensor<Self>, is_mean: bool) -> FloatTensor<Self> {
        twins::rank_sum::<Self>(parts, is_mean)
    }

    /// `[rows, columns], [rows, 1]` twice, to one pair: see [`softmax_merge`](crate::kernels::softmax_merge). The
    /// logarithms have 32 or 64 bits.
    #[fusion(default)]
    fn kernel_softmax_merge(
        output: FloatTensor<Self>,
        log: FloatTensor<Self>,
        other_output: FloatTensor<Self>,
        other_log: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        twins::softmax_merge::<Self>([output, other_output], [log, other_log])
    }
}
