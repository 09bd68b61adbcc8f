//! Single passes over tensors without a graph: each by its kernel or by its twin.

use burn::backend::Dispatch;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Int, Shape, Tensor};

use super::kernel_twins as twins;
use super::{DistributedBackend, KernelBackend, KernelChoice};
use crate::kernels::{AdamWStep, SgdStep, SquareSum};

fn tensor<const D: usize>(dispatched: burn::backend::DispatchTensor) -> Tensor<D> {
    Tensor::from_dispatch(dispatched)
}

/// One step of AdamW: `[..]` each, to parameter and moments. The gradient may have fewer bits.
pub fn adamw<const D: usize>(
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    moments: [Tensor<D>; 2],
    step: AdamWStep,
    choice: KernelChoice,
) -> (Tensor<D>, [Tensor<D>; 2]) {
    let (p, g) = (parameter.into_dispatch(), gradient.into_dispatch());
    let [m, v] = moments.map(Tensor::into_dispatch);
    let (p, m, v) = match choice {
        KernelChoice::Fused => Dispatch::kernel_adamw(p, g, m, v, step),
        KernelChoice::Twin => twins::adamw::<Dispatch>(p, g, m, v, &step),
    };
    (tensor(p), [tensor(m), tensor(v)])
}

/// As [`adamw`], of master weights: also the parameter in the type that the model computes with.
pub fn adamw_with_copies<const D: usize>(
    master: Tensor<D>,
    gradient: Tensor<D>,
    moments: [Tensor<D>; 2],
    step: AdamWStep,
    copy: DType,
    choice: KernelChoice,
) -> (Tensor<D>, [Tensor<D>; 2], Tensor<D>) {
    if choice == KernelChoice::Twin {
        let (master, moments) = adamw(master, gradient, moments, step, choice);
        let copy = master.clone().cast(copy);
        return (master, moments, copy);
    }
    let (p, g) = (master.into_dispatch(), gradient.into_dispatch());
    let [m, v] = moments.map(Tensor::into_dispatch);
    let (p, m, v, copy) = Dispatch::kernel_adamw_copies(p, g, m, v, step, copy);
    (tensor(p), [tensor(m), tensor(v)], tensor(copy))
}

/// One step of gradient descent with momentum: `[..]` each, to parameter and velocity, which is not read at
/// first.
pub fn sgd<const D: usize>(
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    velocity: Tensor<D>,
    step: SgdStep,
    choice: KernelChoice,
) -> (Tensor<D>, Tensor<D>) {
    let (p, g) = (parameter.into_dispatch(), gradient.into_dispatch());
    let v = velocity.into_dispatch();
    let (p, v) = match choice {
        KernelChoice::Fused => Dispatch::kernel_sgd(p, g, v, step),
        KernelChoice::Twin => twins::sgd::<Dispatch>(p, g, v, &step),
    };
    (tensor(p), tensor(v))
}

/// `[n], [..] -> [n]`: the bucket with the part's elements, times a number and in its own type, from `start` on.
pub fn pack<const D: usize>(
    bucket: Tensor<1>,
    part: Tensor<D>,
    start: usize,
    scale: f64,
    choice: KernelChoice,
) -> Tensor<1> {
    let (bucket, part) = (bucket.into_dispatch(), part.into_dispatch());
    tensor(match choice {
        KernelChoice::Fused => Dispatch::kernel_pack(bucket, part, start, scale),
        KernelChoice::Twin => twins::pack::<Dispatch>(bucket, part, start, scale),
    })
}

/// `[n] -> shape`: the bucket's elements from `start` on, times a number, in another type. On Flex a view of the
/// bucket if they stay as they are.
pub fn unpack<const D: usize>(
    bucket: Tensor<1>,
    start: usize,
    shape: [usize; D],
    scale: f64,
    dtype: DType,
    choice: KernelChoice,
) -> Tensor<D> {
    let (bucket, len) = (bucket.into_dispatch(), shape.iter().product());
    let part = match choice {
        KernelChoice::Fused => Dispatch::kernel_unpack(bucket, start, len, scale, dtype),
        KernelChoice::Twin => twins::unpack::<Dispatch>(bucket, start, len, scale, dtype),
    };
    // A dim of 0 means another thing to `Tensor::reshape`.
    tensor(Dispatch::float_reshape(part, Shape::new(shape)))
}

/// The sum of squares of all elements of all tensors: exact, but on CubeCL's devices, where eight tensors take
/// one launch; the twin reads them to the host and is exact everywhere.
pub fn square_sum(tensors: Vec<Tensor<1>>, choice: KernelChoice) -> SquareSum {
    let mut sum = SquareSum::default();
    let mut tensors = tensors.into_iter().peekable();
    while let Some(first) = tensors.next() {
        let device = first.device();
        let nothing = Tensor::<1>::zeros([0], (&device, first.dtype())).into_dispatch();
        let mut next = || match tensors.next_if(|next| next.device() == device) {
            Some(next) => next.into_dispatch(),
            None => nothing.clone(),
        };
        let [a, b, c, d, e, f, g] = std::array::from_fn(|_| next());
        let first = first.into_dispatch();
        sum.merge(match choice {
            KernelChoice::Fused => Dispatch::kernel_square_sum(first, a, b, c, d, e, f, g),
            KernelChoice::Twin => twins::exact_square_sum::<Dispatch>([first, a, b, c, d, e, f, g]),
        });
    }
    sum
}

/// `[n, ..] -> [..]`: the sum over the first dim, or the mean, in order; 16-bit numbers are added in 32 bits.
pub fn rank_sum<const D: usize, const R: usize>(
    parts: Tensor<D>,
    is_mean: bool,
    choice: KernelChoice,
) -> Tensor<R> {
    let parts = parts.into_dispatch();
    tensor(match choice {
        KernelChoice::Fused => Dispatch::kernel_rank_sum(parts, is_mean),
        KernelChoice::Twin => twins::rank_sum::<Dispatch>(parts, is_mean),
    })
}

/// `[rows, columns], [rows, 1]` twice, to one pair: see [`softmax_merge`](crate::kernels::softmax_merge). The
/// logarithms have 32 bits, or 64 where outputs have.
pub fn softmax_merge(
    outputs: [Tensor<2>; 2],
    logs: [Tensor<2>; 2],
    choice: KernelChoice,
) -> (Tensor<2>, Tensor<2>) {
    let [o, other_o] = outputs.map(Tensor::into_dispatch);
    let [l, other_l] = logs.map(Tensor::into_dispatch);
    let (o, l) = match choice {
        KernelChoice::Fused => Dispatch::kernel_softmax_merge(o, l, other_o, other_l),
        KernelChoice::Twin => twins::softmax_merge::<Dispatch>([o, other_o], [l, other_l]),
    };
    (tensor(o), tensor(l))
}

/// `[rows, columns], [rows, 1] -> [rows, ROW_PARTS]`: what rows of logits without a graph give in one pass; see
/// [`row_parts`](crate::kernels::row_parts).
pub fn row_parts(
    logits: Tensor<2>,
    targets: Tensor<2, Int>,
    tokens: usize,
    choice: KernelChoice,
) -> Tensor<2> {
    let (logits, targets) = (logits.into_dispatch(), targets.into_dispatch());
    tensor(match choice {
        KernelChoice::Fused => Dispatch::kernel_row_parts(logits, targets, tokens),
        KernelChoice::Twin => twins::row_parts::<Dispatch>(logits, targets, tokens),
    })
}

/// `[rows, columns], [rows, 1], [rows, 1], [rows, ROW_SLOPES] -> [rows, 1]`: `losses` as a function of `logits`;
/// losses and slopes are computed without a graph. The gradient takes the place of the logits; see
/// [`row_slopes`](crate::kernels::row_slopes).
pub fn row_loss(
    logits: Tensor<2>,
    targets: Tensor<2, Int>,
    losses: Tensor<2>,
    slopes: Tensor<2>,
    tokens: usize,
    choice: KernelChoice,
) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::dist_row_loss(
        logits.into_dispatch(),
        targets.into_dispatch(),
        losses.into_dispatch(),
        slopes.into_dispatch(),
        tokens,
        choice,
    ))
}

/// `[rows, columns], [rows, 1], [rows, ROW_SLOPES] -> [rows, columns]`: what a loss gives back to rows of logits
/// without a graph, in their place where nobody else holds them; see [`row_slopes`](crate::kernels::row_slopes).
pub fn row_slopes(
    logits: Tensor<2>,
    targets: Tensor<2, Int>,
    slopes: Tensor<2>,
    tokens: usize,
    choice: KernelChoice,
) -> Tensor<2> {
    let (logits, targets) = (logits.into_dispatch(), targets.into_dispatch());
    let slopes = slopes.into_dispatch();
    tensor(match choice {
        KernelChoice::Fused => Dispatch::kernel_row_slopes(logits, targets, slopes, tokens),
        KernelChoice::Twin => twins::row_slopes::<Dispatch>(logits, targets, slopes, tokens),
    })
}
