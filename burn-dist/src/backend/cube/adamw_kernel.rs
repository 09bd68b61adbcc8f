//! A step of AdamW: see [`AdamWStep`].
#![allow(unsafe_code)]

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{address, new_beside, output, units, vector_size};
use crate::kernels::AdamWStep;

/// The numbers of a step; see [`AdamWStep`].
#[derive(CubeLaunch, CubeType)]
struct AdamWNumbers {
    scale: f32,
    keep_1: f32,
    take_1: f32,
    keep_2: f32,
    take_2: f32,
    bias_1: f32,
    bias_2: f32,
    epsilon: f32,
    keep: f32,
    lr: f32,
}

/// Parameter and moments, stepped.
#[cube]
fn stepped<N: Size>(
    parameter: Vector<f32, N>,
    gradient: Vector<f32, N>,
    moment_1: Vector<f32, N>,
    moment_2: Vector<f32, N>,
    n: &AdamWNumbers,
) -> (Vector<f32, N>, Vector<f32, N>, Vector<f32, N>) {
    let g = gradient * Vector::new(n.scale);
    let m = moment_1 * Vector::new(n.keep_1) + g * Vector::new(n.take_1);
    let v = moment_2 * Vector::new(n.keep_2) + g * g * Vector::new(n.take_2);
    let root = (v / Vector::new(n.bias_2)).sqrt() + Vector::new(n.epsilon);
    let delta = m / Vector::new(n.bias_1) / root;
    let p = parameter * Vector::new(n.keep) - delta * Vector::new(n.lr);
    (p, m, v)
}

#[cube(launch_unchecked, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
fn adamw_kernel<F: Float, G: Float, N: Size>(
    parameter: &Tensor<Vector<F, N>>,
    gradient: &Tensor<Vector<G, N>>,
    moment_1: &Tensor<Vector<F, N>>,
    moment_2: &Tensor<Vector<F, N>>,
    parameter_out: &mut Tensor<Vector<F, N>>,
    moment_1_out: &mut Tensor<Vector<F, N>>,
    moment_2_out: &mut Tensor<Vector<F, N>>,
    scalars: AdamWNumbers,
    vectors: usize,
    #[define(F, G)] _dtypes: [ElemType; 2],
) {
    if ABSOLUTE_POS >= vectors {
        terminate!();
    }
    let (p, m, v) = stepped::<N>(
        Vector::cast_from(parameter[ABSOLUTE_POS]),
        Vector::cast_from(gradient[ABSOLUTE_POS]),
        Vector::cast_from(moment_1[ABSOLUTE_POS]),
        Vector::cast_from(moment_2[ABSOLUTE_POS]),
        &scalars,
    );
    parameter_out[ABSOLUTE_POS] = Vector::cast_from(p);
    moment_1_out[ABSOLUTE_POS] = Vector::cast_from(m);
    moment_2_out[ABSOLUTE_POS] = Vector::cast_from(v);
}

#[cube(launch_unchecked, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
fn adamw_copies_kernel<F: Float, G: Float, C: Float, N: Size>(
    parameter: &Tensor<Vector<F, N>>,
    gradient: &Tensor<Vector<G, N>>,
    moment_1: &Tensor<Vector<F, N>>,
    moment_2: &Tensor<Vector<F, N>>,
    parameter_out: &mut Tensor<Vector<F, N>>,
    moment_1_out: &mut Tensor<Vector<F, N>>,
    moment_2_out: &mut Tensor<Vector<F, N>>,
    copy_out: &mut Tensor<Vector<C, N>>,
    scalars: AdamWNumbers,
    vectors: usize,
    #[define(F, G, C)] _dtypes: [ElemType; 3],
) {
    if ABSOLUTE_POS >= vectors {
        terminate!();
    }
    let (p, m, v) = stepped::<N>(
        Vector::cast_from(parameter[ABSOLUTE_POS]),
        Vector::cast_from(gradient[ABSOLUTE_POS]),
        Vector::cast_from(moment_1[ABSOLUTE_POS]),
        Vector::cast_from(moment_2[ABSOLUTE_POS]),
        &scalars,
    );
    let rounded = Vector::<F, N>::cast_from(p);
    parameter_out[ABSOLUTE_POS] = rounded;
    moment_1_out[ABSOLUTE_POS] = Vector::cast_from(m);
    moment_2_out[ABSOLUTE_POS] = Vector::cast_from(v);
    copy_out[ABSOLUTE_POS] = Vector::cast_from(rounded);
}

/// Parameter, gradient and moments without gaps, of one length that is not 0, to parameter, moments and, if asked
/// for, the parameter in another type.
pub(super) fn adamw(
    [parameter, gradient, moment_1, moment_2]: [CubeTensor; 4],
    step: &AdamWStep,
    copy: Option<DType>,
) -> ([CubeTensor; 3], Option<CubeTensor>) {
    let dtypes = [parameter.dtype, gradient.dtype];
    let len = parameter.meta.num_elements();
    for other in [&gradient, &moment_1, &moment_2] {
        assert_eq!(other.meta.num_elements(), len, "tensors of one length");
    }
    let client = parameter.client.clone();
    let vector_size = vector_size(
        &client,
        &[len],
        &[dtypes[0], dtypes[1], copy.unwrap_or(dtypes[0])],
    );
    let vectors = len / vector_size;
    let (cube_count, cube_dim) = units(&client, vectors);
    let at = address(&[&parameter, &gradient, &moment_1, &moment_2]);
    let copied = copy.map(|copy| new_beside(&parameter, parameter.meta.shape().clone(), copy));
    let (parameter_out, to_parameter) = output(&parameter, 0);
    let (moment_1_out, to_moment_1) = output(&moment_1, 2);
    let (moment_2_out, to_moment_2) = output(&moment_2, 3);
    let s = step.scalars::<f32>();
    let numbers = AdamWNumbersLaunch::new(
        s.scale, s.keep_1, s.take_1, s.keep_2, s.take_2, s.bias_1, s.bias_2, s.epsilon, s.keep,
        s.lr,
    );
    let [f, g] = dtypes.map(dtype_to_storage_type);
    match &copied {
        // SAFETY: every unit checks that its place is below the number of vectors, which all arrays have.
        None => unsafe {
            adamw_kernel::launch_unchecked(
                &client,
                cube_count,
                cube_dim,
                at,
                vector_size,
                parameter.into_tensor_arg(),
                gradient.into_tensor_arg(),
                moment_1.into_tensor_arg(),
                moment_2.into_tensor_arg(),
                to_parameter,
                to_moment_1,
                to_moment_2,
                numbers,
                vectors,
                [f, g],
            );
        },
        // SAFETY: as above; the copy has the parameter's shape.
        Some(copied) => unsafe {
            adamw_copies_kernel::launch_unchecked(
                &client,
                cube_count,
                cube_dim,
                at,
                vector_size,
                parameter.into_tensor_arg(),
                gradient.into_tensor_arg(),
                moment_1.into_tensor_arg(),
                moment_2.into_tensor_arg(),
                to_parameter,
                to_moment_1,
                to_moment_2,
                copied.clone().into_tensor_arg(),
                numbers,
                vectors,
                [f, g, dtype_to_storage_type(copied.dtype)],
            );
        },
    }
    ([parameter_out, moment_1_out, moment_2_out], copied)
}
