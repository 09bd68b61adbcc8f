//! Kernels as chains of tensor operations: right on every backend, and what the others are compared with.

use burn::backend::{Backend, Scalar, tensor::FloatTensor};

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
