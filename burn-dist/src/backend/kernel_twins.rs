//! Kernels as chains of tensor operations: right on every backend, and what the others are compared with.

use burn::backend::try_read_sync;
use burn::backend::{
    Backend, Scalar, TensorMetadata, get_or_init_device_settings,
    tensor::{BoolTensor, FloatTensor, IntTensor},
};
use burn::tensor::{DType, IndexingUpdateOp, Shape, Slice};

use crate::communicator::HostBuffer;
use crate::kernels::{AdamWStep, SgdStep, SquareSum};

/// The operations of Burn's `AdamW`, in its order.
pub(super) fn adamw<B: Backend>(
    parameter: FloatTensor<B>,
    gradient: FloatTensor<B>,
    moment_1: FloatTensor<B>,
    moment_2: FloatTensor<B>,
    step: &AdamWStep,
) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
    let s = step.scalars::<f64>();
    let scalar = |value: f64| Scalar::from(value);
    let gradient = cast::<B>(gradient, parameter.dtype());
    let g = match step.gradient_scale == 1.0 {
        true => gradient,
        false => B::float_mul_scalar(gradient, scalar(s.scale)),
    };
    let m = B::float_add(
        B::float_mul_scalar(moment_1, scalar(s.keep_1)),
        B::float_mul_scalar(g.clone(), scalar(s.take_1)),
    );
    let v = B::float_add(
        B::float_mul_scalar(moment_2, scalar(s.keep_2)),
        B::float_mul_scalar(B::float_mul(g.clone(), g), scalar(s.take_2)),
    );
    let unbiased = B::float_div_scalar(m.clone(), scalar(s.bias_1));
    let root = B::float_sqrt(B::float_div_scalar(v.clone(), scalar(s.bias_2)));
    let delta = B::float_div(unbiased, B::float_add_scalar(root, scalar(s.epsilon)));
    let kept = B::float_mul_scalar(parameter, scalar(s.keep));
    let stepped = B::float_sub(kept, B::float_mul_scalar(delta, scalar(s.lr)));
    (stepped, m, v)
}

fn cast<B: Backend>(tensor: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    match tensor.dtype() == dtype {
        true => tensor,
        false => B::float_cast(tensor, dtype.into()),
    }
}

fn scaled<B: Backend>(tensor: FloatTensor<B>, scale: f64) -> FloatTensor<B> {
    match scale == 1.0 {
        true => tensor,
        false => B::float_mul_scalar(tensor, Scalar::from(scale)),
    }
}

/// The operations of Burn's `Sgd` with momentum, in its order.
pub(super) fn sgd<B: Backend>(
    parameter: FloatTensor<B>,
    gradient: FloatTensor<B>,
    velocity: FloatTensor<B>,
    step: &SgdStep,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let s = step.scalars::<f64>();
    let times = |tensor, value: f64| B::float_mul_scalar(tensor, Scalar::from(value));
    let mut g = scaled::<B>(gradient, step.gradient_scale);
    if step.penalty.is_some() {
        g = B::float_add(times(parameter.clone(), s.penalty), g);
    }
    let velocity = match step.is_first {
        true => g.clone(),
        false => B::float_add(times(g.clone(), s.take), times(velocity, s.keep)),
    };
    let along = match step.nesterov {
        true => B::float_add(times(velocity.clone(), s.keep), g),
        false => velocity.clone(),
    };
    (B::float_sub(parameter, times(along, s.lr)), velocity)
}

/// In the wide type, rounded once.
fn scaled_cast<B: Backend>(tensor: FloatTensor<B>, scale: f64, dtype: DType) -> FloatTensor<B> {
    let wide = wide(tensor.dtype());
    let tensor = match scale == 1.0 {
        true => tensor,
        false => scaled::<B>(cast::<B>(tensor, wide), scale),
    };
    cast::<B>(tensor, dtype)
}

/// See [`scaled_copy`](crate::kernels::scaled_copy).
pub(super) fn pack<B: Backend>(
    bucket: FloatTensor<B>,
    part: FloatTensor<B>,
    start: usize,
    scale: f64,
) -> FloatTensor<B> {
    let len = part.shape().num_elements();
    let part = B::float_reshape(part, Shape::new([len]));
    let part = scaled_cast::<B>(part, scale, bucket.dtype());
    B::float_slice_assign(bucket, &[range(start, len)], part)
}

fn range(start: usize, len: usize) -> Slice {
    Slice::new(start as isize, Some((start + len) as isize), 1)
}

/// A part of what [`pack`] made.
pub(super) fn unpack<B: Backend>(
    bucket: FloatTensor<B>,
    start: usize,
    len: usize,
    scale: f64,
    dtype: DType,
) -> FloatTensor<B> {
    scaled_cast::<B>(B::float_slice(bucket, &[range(start, len)]), scale, dtype)
}

/// In host memory, exact.
pub(super) fn exact_square_sum<B: Backend>(
    parts: impl IntoIterator<Item = FloatTensor<B>>,
) -> SquareSum {
    let mut sum = SquareSum::default();
    for part in parts {
        match try_read_sync(B::float_into_data(part)) {
            Some(Ok(data)) => HostBuffer::from(data).add_squares(&mut sum),
            // What cannot be read is not known to be finite.
            _ => sum.add_f32(&[f32::NAN]),
        }
    }
    sum
}

/// In rank order; see [`reduce_in_rank_order`](crate::communicator::reduce_in_rank_order).
pub(super) fn rank_sum<B: Backend>(parts: FloatTensor<B>, is_mean: bool) -> FloatTensor<B> {
    let (shape, narrow) = (parts.shape(), parts.dtype());
    let wide = wide(narrow);
    let ranks = (0..shape[0]).map(|rank| {
        let part = B::float_slice(parts.clone(), &[range(rank, 1)]);
        cast::<B>(part, wide)
    });
    let sum = ranks.reduce(B::float_add);
    let sum = sum.expect("invariant: at least one part");
    let sum = match is_mean {
        true => B::float_div_scalar(sum, Scalar::from(shape[0] as f64)),
        false => sum,
    };
    let sum = B::float_reshape(sum, Shape::from(shape[1..].to_vec()));
    cast::<B>(sum, narrow)
}

/// See [`softmax_merge`](crate::kernels::softmax_merge).
pub(super) fn softmax_merge<B: Backend>(
    outputs: [FloatTensor<B>; 2],
    logs: [FloatTensor<B>; 2],
) -> (FloatTensor<B>, FloatTensor<B>) {
    let (device, narrow) = (outputs[0].device(), outputs[0].dtype());
    let wide = logs[0].dtype();
    let bools = get_or_init_device_settings::<B>(&device).bool_dtype;
    let lowest = Scalar::from(f64::NEG_INFINITY);
    let [log, other] = logs;
    let largest = {
        let is_less = B::float_lower(log.clone(), other.clone(), bools);
        B::float_mask_where(log.clone(), is_less, other.clone())
    };
    let nothing = B::float_equal_elem(largest.clone(), lowest, bools);
    // A difference of two infinities is no number.
    let base = B::float_mask_fill(largest, nothing.clone(), Scalar::from(0.0));
    let part = |log: FloatTensor<B>| B::float_exp(B::float_sub(log, base.clone()));
    let (a, b) = (part(log), part(other));
    let sum = B::float_add(a.clone(), b.clone());
    let total = B::float_add(B::float_log(sum.clone()), base);
    let sum = B::float_mask_fill(sum, nothing, Scalar::from(1.0));
    let weighted = |output: FloatTensor<B>, part: FloatTensor<B>| {
        // An output without keys may be anything.
        let empty = B::float_equal_elem(part.clone(), Scalar::from(0.0), bools);
        let output = cast::<B>(output, wide);
        let empty = B::bool_expand(empty, output.shape());
        let output = B::float_mask_fill(output, empty, Scalar::from(0.0));
        B::float_mul(output, B::float_div(part, sum.clone()))
    };
    let [output, other] = outputs;
    let output = B::float_add(weighted(output, a), weighted(other, b));
    (cast::<B>(output, narrow), total)
}

fn columns<B: Backend>(tensor: FloatTensor<B>, from: usize, to: usize) -> FloatTensor<B> {
    let whole = Slice::new(0, None, 1);
    B::float_slice(
        tensor,
        &[whole, Slice::new(from as isize, Some(to as isize), 1)],
    )
}

/// Where a target is not here, and the targets without negative ones.
fn split_targets<B: Backend>(targets: IntTensor<B>) -> (BoolTensor<B>, IntTensor<B>) {
    let dtype = get_or_init_device_settings::<B>(&targets.device()).bool_dtype;
    let elsewhere = B::int_lower_elem(targets.clone(), Scalar::from(0), dtype);
    let here = B::int_mask_fill(targets, elsewhere.clone(), Scalar::from(0));
    (elsewhere, here)
}

/// What sums are made in.
pub(super) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// See [`row_parts`](crate::kernels::row_parts).
pub(super) fn row_parts<B: Backend>(
    logits: FloatTensor<B>,
    targets: IntTensor<B>,
    tokens: usize,
) -> FloatTensor<B> {
    let (device, wide) = (logits.device(), wide(logits.dtype()));
    let rows = logits.shape()[0];
    let column = |value: f64| {
        let shape = Shape::new([rows, 1]);
        B::float_full(shape, Scalar::from(value), &device, wide.into())
    };
    if tokens == 0 {
        let parts = vec![
            column(f64::NEG_INFINITY),
            column(0.0),
            column(0.0),
            column(0.0),
        ];
        return B::float_cat(parts, 1);
    }
    let z = columns::<B>(B::float_cast(logits, wide.into()), 0, tokens);
    let largest = B::float_max_dim(z.clone(), 1);
    let exponentials = B::float_exp(B::float_sub(z.clone(), largest.clone()));
    let (elsewhere, here) = split_targets::<B>(targets);
    let of_target = B::float_gather(1, z.clone(), here);
    let of_target = B::float_mask_fill(of_target, elsewhere, Scalar::from(0.0));
    let parts = vec![
        largest,
        B::float_sum_dim(exponentials, 1),
        of_target,
        B::float_sum_dim(z, 1),
    ];
    B::float_cat(parts, 1)
}

/// See [`row_slopes`](crate::kernels::row_slopes).
pub(super) fn row_slopes<B: Backend>(
    logits: FloatTensor<B>,
    targets: IntTensor<B>,
    slopes: FloatTensor<B>,
    tokens: usize,
) -> FloatTensor<B> {
    let (narrow, wide) = (logits.dtype(), wide(logits.dtype()));
    let shape = logits.shape();
    let padded = shape[1];
    let zeros = B::float_zeros(shape, &logits.device(), narrow.into());
    if tokens == 0 {
        return zeros;
    }
    let z = columns::<B>(B::float_cast(logits, wide.into()), 0, tokens);
    let column = |number: usize| columns::<B>(slopes.clone(), number, number + 1);
    let exponentials = B::float_exp(B::float_sub(z, column(0)));
    let gradient = B::float_add(B::float_mul(exponentials, column(1)), column(2));
    let (elsewhere, here) = split_targets::<B>(targets);
    let of_target = B::float_mask_fill(B::float_neg(column(3)), elsewhere, Scalar::from(0.0));
    let gradient = B::float_scatter(1, gradient, here, of_target, IndexingUpdateOp::Add);
    let gradient = B::float_cast(gradient, narrow.into());
    match tokens == padded {
        true => gradient,
        false => {
            let place = [
                Slice::new(0, None, 1),
                Slice::new(0, Some(tokens as isize), 1),
            ];
            B::float_slice_assign(zeros, &place, gradient)
        }
    }
}
