//! Kernels on CubeCL's runtimes: CUDA, ROCm, Metal, Vulkan, and the CPU.
#![allow(unsafe_code)]

use burn::backend::{Cube, cubecl::dtype_to_storage_type};
use burn::tensor::DType;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use super::KernelBackend;
use super::kernel_twins as twins;
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

#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
fn adamw_kernel<F: Float, N: Size>(
    parameter: &Tensor<Vector<F, N>>,
    gradient: &Tensor<Vector<F, N>>,
    moment_1: &Tensor<Vector<F, N>>,
    moment_2: &Tensor<Vector<F, N>>,
    parameter_out: &mut Tensor<Vector<F, N>>,
    moment_1_out: &mut Tensor<Vector<F, N>>,
    moment_2_out: &mut Tensor<Vector<F, N>>,
    n: AdamWNumbers,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= parameter_out.len() {
        terminate!();
    }
    let g = Vector::<f32, N>::cast_from(gradient[ABSOLUTE_POS]) * Vector::new(n.scale);
    let m = Vector::<f32, N>::cast_from(moment_1[ABSOLUTE_POS]) * Vector::new(n.keep_1)
        + g * Vector::new(n.take_1);
    let v = Vector::<f32, N>::cast_from(moment_2[ABSOLUTE_POS]) * Vector::new(n.keep_2)
        + g * g * Vector::new(n.take_2);
    let root = (v / Vector::new(n.bias_2)).sqrt() + Vector::new(n.epsilon);
    let delta = m / Vector::new(n.bias_1) / root;
    let p = Vector::<f32, N>::cast_from(parameter[ABSOLUTE_POS]) * Vector::new(n.keep)
        - delta * Vector::new(n.lr);
    parameter_out[ABSOLUTE_POS] = Vector::cast_from(p);
    moment_1_out[ABSOLUTE_POS] = Vector::cast_from(m);
    moment_2_out[ABSOLUTE_POS] = Vector::cast_from(v);
}

/// Elements that one unit takes: as many as 16 bytes hold and the length allows.
fn vector_size(tensor: &CubeTensor) -> usize {
    let len = tensor.meta.num_elements();
    let most = (16 / tensor.dtype.size()).max(1);
    [8, 4, 2]
        .into_iter()
        .find(|&n| n <= most && len.is_multiple_of(n))
        .unwrap_or(1)
}

/// Where a result goes: into its input's memory, if nobody else holds that, or into new memory.
fn output(input: &CubeTensor, position: usize) -> (CubeTensor, TensorArg) {
    if input.can_mut() {
        return (input.clone(), input.as_tensor_alias(position));
    }
    let new = empty_device_contiguous_dtype(
        input.client.clone(),
        input.device.clone(),
        input.meta.shape().clone(),
        input.dtype,
    );
    (new.clone(), new.into_tensor_arg())
}

fn is_small_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

impl KernelBackend for Cube {
    fn kernel_adamw(
        parameter: CubeTensor,
        gradient: CubeTensor,
        moment_1: CubeTensor,
        moment_2: CubeTensor,
        step: AdamWStep,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let dtype = parameter.dtype;
        let others = [&gradient, &moment_1, &moment_2];
        let mixed = others.iter().any(|other| other.dtype != dtype);
        if mixed || !is_small_float(dtype) || parameter.meta.num_elements() == 0 {
            return twins::adamw::<Self>(parameter, gradient, moment_1, moment_2, &step);
        }
        let [parameter, gradient, moment_1, moment_2] =
            [parameter, gradient, moment_1, moment_2].map(into_contiguous);
        let vector_size = vector_size(&parameter);
        let units = parameter.meta.num_elements() / vector_size;
        let client = parameter.client.clone();
        let cube_dim = CubeDim::new(&client, units);
        let cube_count = calculate_cube_count_elemwise(&client, units, cube_dim);
        let (parameter_out, to_parameter) = output(&parameter, 0);
        let (moment_1_out, to_moment_1) = output(&moment_1, 2);
        let (moment_2_out, to_moment_2) = output(&moment_2, 3);
        let s = step.scalars::<f32>();
        // SAFETY: every unit checks that its place is below the length, which all seven arrays have.
        unsafe {
            adamw_kernel::launch_unchecked(
                &client,
                cube_count,
                cube_dim,
                vector_size,
                parameter.into_tensor_arg(),
                gradient.into_tensor_arg(),
                moment_1.into_tensor_arg(),
                moment_2.into_tensor_arg(),
                to_parameter,
                to_moment_1,
                to_moment_2,
                AdamWNumbersLaunch::new(
                    s.scale, s.keep_1, s.take_1, s.keep_2, s.take_2, s.bias_1, s.bias_2, s.epsilon,
                    s.keep, s.lr,
                ),
                dtype_to_storage_type(dtype),
            );
        }
        (parameter_out, moment_1_out, moment_2_out)
    }
}

#[cfg(all(test, feature = "cpu", feature = "flex"))]
mod tests {
    use burn::tensor::{Device, Tensor, TensorData};

    use crate::backend::{self, KernelChoice};
    use crate::kernels::AdamWStep;

    /// Parameter and moments after two steps.
    fn stepped(device: &Device, len: usize, is_shared: bool) -> [Vec<f32>; 3] {
        let tensor = |seed: usize| -> Tensor<1> {
            let values = (0..len).map(|i| ((i * 7919 + seed * 104_729) % 1000) as f32 / 250.0);
            let values: Vec<f32> = values.map(|value| value - 1.5).collect();
            Tensor::from_data(TensorData::new(values, [len]), device)
        };
        let (mut p, mut m, mut v) = (tensor(1), tensor(2), tensor(3).powi_scalar(2));
        let kept = is_shared.then(|| [p.clone(), m.clone(), v.clone()]);
        for time in 1..=2 {
            let step = AdamWStep {
                lr: 1e-2,
                beta_1: 0.9,
                beta_2: 0.99,
                epsilon: 1e-5,
                weight_decay: 0.1,
                time,
                gradient_scale: 0.5,
            };
            (p, [m, v]) = backend::adamw(p, tensor(3 + time), [m, v], step, KernelChoice::Fused);
        }
        if let Some([p, m, _]) = kept {
            for (kept, seed) in [(p, 1), (m, 2)] {
                let (kept, right) = (kept.into_data(), tensor(seed).into_data());
                assert_eq!(kept, right, "what others hold is left alone");
            }
        }
        [p, m, v].map(|tensor| tensor.into_data().iter::<f32>().collect())
    }

    #[test]
    fn adamw_is_that_of_flex() {
        for len in [0, 1, 7, 64, 1003, 4096] {
            for is_shared in [false, true] {
                let right = stepped(&Device::flex(), len, is_shared);
                let got = stepped(&Device::cpu(), len, is_shared);
                for (got, right) in got.iter().flatten().zip(right.iter().flatten()) {
                    assert!((got - right).abs() < 1e-5, "{len}: {got} {right}");
                }
            }
        }
    }
}
