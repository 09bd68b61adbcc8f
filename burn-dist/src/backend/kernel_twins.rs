//! Kernels as chains of tensor operations: right on every backend, and what the others are compared with.

use burn::backend::{
    Backend, Scalar, TensorMetadata, get_or_init_device_settings,
    tensor::{BoolTensor, FloatTensor, IntTensor},
};
use burn::tensor::{DType, IndexingUpdateOp, Shape, Slice};

use crate::kernels::AdamWStep;

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
