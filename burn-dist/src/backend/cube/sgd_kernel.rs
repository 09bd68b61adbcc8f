//! A step of gradient descent with momentum: see [`SgdStep`].
#![allow(unsafe_code)]

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{address, output, units, vector_size};
use crate::kernels::SgdStep;

/// The numbers of a step; see [`SgdStep`].
#[derive(CubeLaunch, CubeType)]
struct SgdNumbers {
    scale: f32,
    penalty: f32,
    take: f32,
    keep: f32,
    lr: f32,
}

#[cube(launch_unchecked, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
fn sgd_kernel<F: Float, N: Size>(
    parameter: &Tensor<Vector<F, N>>,
    gradient: &Tensor<Vector<F, N>>,
    velocity: &Tensor<Vector<F, N>>,
    parameter_out: &mut Tensor<Vector<F, N>>,
    velocity_out: &mut Tensor<Vector<F, N>>,
    scalars: SgdNumbers,
    vectors: usize,
    #[comptime] has_penalty: bool,
    #[comptime] is_first: bool,
    #[comptime] nesterov: bool,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= vectors {
        terminate!();
    }
    let p = Vector::<f32, N>::cast_from(parameter[ABSOLUTE_POS]);
    let scaled = Vector::<f32, N>::cast_from(gradient[ABSOLUTE_POS]) * Vector::new(scalars.scale);
    // A sum with 0 would lose the sign of a gradient of -0.0.
    let g = if has_penalty {
        p * Vector::new(scalars.penalty) + scaled
    } else {
        scaled
    };
    let v = if is_first {
        g
    } else {
        let before = Vector::<f32, N>::cast_from(velocity[ABSOLUTE_POS]);
        g * Vector::new(scalars.take) + before * Vector::new(scalars.keep)
    };
    let along = if nesterov {
        v * Vector::new(scalars.keep) + g
    } else {
        v
    };
    velocity_out[ABSOLUTE_POS] = Vector::cast_from(v);
    parameter_out[ABSOLUTE_POS] = Vector::cast_from(p - along * Vector::new(scalars.lr));
}

/// Parameter, gradient and velocity without gaps, of one type and of one length that is not 0, to parameter and
/// velocity.
pub(super) fn sgd(
    [parameter, gradient, velocity]: [CubeTensor; 3],
    step: &SgdStep,
) -> (CubeTensor, CubeTensor) {
    let dtype = parameter.dtype;
    let len = parameter.meta.num_elements();
    for other in [&gradient, &velocity] {
        assert_eq!(other.meta.num_elements(), len, "tensors of one length");
    }
    let client = parameter.client.clone();
    let vector_size = vector_size(&client, &[len], &[dtype]);
    let vectors = len / vector_size;
    let (cube_count, cube_dim) = units(&client, vectors);
    let at = address(&[&parameter, &gradient, &velocity]);
    let (parameter_out, to_parameter) = output(&parameter, 0);
    let (velocity_out, to_velocity) = output(&velocity, 2);
    let s = step.scalars::<f32>();
    // SAFETY: every unit checks that its place is below the number of vectors, which all five arrays have.
    unsafe {
        sgd_kernel::launch_unchecked(
            &client,
            cube_count,
            cube_dim,
            at,
            vector_size,
            parameter.into_tensor_arg(),
            gradient.into_tensor_arg(),
            velocity.into_tensor_arg(),
            to_parameter,
            to_velocity,
            SgdNumbersLaunch::new(s.scale, s.penalty, s.take, s.keep, s.lr),
            vectors,
            step.penalty.is_some(),
            step.is_first,
            step.nesterov,
            dtype_to_storage_type(dtype),
        );
    }
    (parameter_out, velocity_out)
}
