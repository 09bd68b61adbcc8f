//! Kernels on Flex: plain Rust over the host memory that tensors are.

use burn::backend::{Element, Flex, flex::FlexTensor, flex::Layout};
use burn::tensor::{Bytes, DType};
use half::{bf16, f16};

use super::KernelBackend;
use super::kernel_twins as twins;
use crate::kernels::{self, AdamWStep, KernelFloat, ROW_PARTS};

/// What Flex stores and kernels compute on.
trait Stored: KernelFloat + Element + bytemuck::Pod {}

impl<E: KernelFloat + Element + bytemuck::Pod> Stored for E {}

/// A tensor of memory that nobody else holds, without gaps.
fn owned<E: Stored>(tensor: FlexTensor) -> FlexTensor {
    let tensor = without_gaps(tensor);
    let is_whole = tensor.storage::<E>().len() == tensor.layout().num_elements();
    match is_whole && tensor.is_unique() {
        true => tensor,
        false => from_values(values::<E>(&tensor).to_vec(), &tensor),
    }
}

/// Of a view with gaps a copy without; what has none stays as it is.
fn without_gaps(tensor: FlexTensor) -> FlexTensor {
    match tensor.is_contiguous() {
        true => tensor,
        false => tensor.to_contiguous(),
    }
}

/// The elements of a tensor without gaps.
fn values<E: Stored>(tensor: &FlexTensor) -> &[E] {
    tensor.as_slice().expect("invariant: it has no gaps")
}

fn from_values<E: Stored>(values: Vec<E>, like: &FlexTensor) -> FlexTensor {
    let layout = Layout::contiguous(like.layout().shape().clone());
    FlexTensor::new(Bytes::from_elems(values), layout, like.dtype())
}

fn adamw<E: Stored>(
    tensors: [FlexTensor; 4],
    step: &AdamWStep,
) -> (FlexTensor, FlexTensor, FlexTensor) {
    let [mut parameter, gradient, moment_1, moment_2] = tensors.map(without_gaps);
    let (mut moment_1, mut moment_2) = (owned::<E>(moment_1), owned::<E>(moment_2));
    let (m, v) = (moment_1.storage_mut(), moment_2.storage_mut());
    let len = parameter.layout().num_elements();
    let is_whole = parameter.storage::<E>().len() == len;
    if is_whole && let Some(parameters) = parameter.try_storage_mut::<E>() {
        step.run(parameters, values(&gradient), m, v);
        return (parameter, moment_1, moment_2);
    }
    let mut stepped = Vec::with_capacity(len);
    step.run_into(
        values::<E>(&parameter),
        values(&gradient),
        m,
        v,
        &mut stepped,
    );
    (from_values(stepped, &parameter), moment_1, moment_2)
}

impl KernelBackend for Flex {
    fn kernel_adamw(
        parameter: FlexTensor,
        gradient: FlexTensor,
        moment_1: FlexTensor,
        moment_2: FlexTensor,
        step: AdamWStep,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let dtype = parameter.dtype();
        let others = [&gradient, &moment_1, &moment_2];
        if others.iter().any(|other| other.dtype() != dtype) {
            return twins::adamw::<Self>(parameter, gradient, moment_1, moment_2, &step);
        }
        let tensors = [parameter, gradient, moment_1, moment_2];
        match dtype {
            DType::F32 => adamw::<f32>(tensors, &step),
            DType::F64 => adamw::<f64>(tensors, &step),
            DType::F16 => adamw::<f16>(tensors, &step),
            DType::BF16 => adamw::<bf16>(tensors, &step),
            _ => {
                let [parameter, gradient, moment_1, moment_2] = tensors;
                twins::adamw::<Self>(parameter, gradient, moment_1, moment_2, &step)
            }
        }
    }

    fn kernel_row_parts(logits: FlexTensor, targets: FlexTensor, tokens: usize) -> FlexTensor {
        let host = host_targets(&targets);
        match (logits.dtype(), host) {
            (DType::F32, Some(host)) => row_parts::<f32>(logits, &host, tokens),
            (DType::F64, Some(host)) => row_parts::<f64>(logits, &host, tokens),
            (DType::F16, Some(host)) => row_parts::<f16>(logits, &host, tokens),
            (DType::BF16, Some(host)) => row_parts::<bf16>(logits, &host, tokens),
            _ => twins::row_parts::<Self>(logits, targets, tokens),
        }
    }

    fn kernel_row_slopes(
        logits: FlexTensor,
        targets: FlexTensor,
        slopes: FlexTensor,
        tokens: usize,
    ) -> FlexTensor {
        let host = host_targets(&targets);
        match (logits.dtype(), host) {
            (DType::F32, Some(host)) => row_slopes::<f32>(logits, &host, &slopes, tokens),
            (DType::F64, Some(host)) => row_slopes::<f64>(logits, &host, &slopes, tokens),
            (DType::F16, Some(host)) => row_slopes::<f16>(logits, &host, &slopes, tokens),
            (DType::BF16, Some(host)) => row_slopes::<bf16>(logits, &host, &slopes, tokens),
            _ => twins::row_slopes::<Self>(logits, targets, slopes, tokens),
        }
    }
}

/// Targets as the kernels take them; `None` for a type of integers that no model has.
fn host_targets(targets: &FlexTensor) -> Option<Vec<i64>> {
    let targets = targets.to_contiguous();
    match targets.dtype() {
        DType::I64 => Some(targets.as_slice::<i64>()?.to_vec()),
        DType::I32 => {
            let values = targets.as_slice::<i32>()?.iter();
            Some(values.map(|&value| i64::from(value)).collect())
        }
        _ => None,
    }
}

fn row_parts<E: Stored>(logits: FlexTensor, targets: &[i64], tokens: usize) -> FlexTensor
where
    E::Wide: Stored,
{
    let columns = logits.layout().shape()[1];
    let mut parts = Vec::with_capacity(targets.len() * ROW_PARTS);
    let logits = without_gaps(logits);
    kernels::row_parts::<E>(values(&logits), [columns, tokens], targets, &mut parts);
    let layout = Layout::contiguous([targets.len(), ROW_PARTS].into());
    FlexTensor::new(
        Bytes::from_elems(parts),
        layout,
        twins::wide(logits.dtype()),
    )
}

fn row_slopes<E: Stored>(
    logits: FlexTensor,
    targets: &[i64],
    slopes: &FlexTensor,
    tokens: usize,
) -> FlexTensor
where
    E::Wide: Stored,
{
    let columns = logits.layout().shape()[1];
    let slopes = slopes.to_contiguous();
    let mut logits = owned::<E>(logits);
    let gradient = logits.storage_mut::<E>();
    kernels::row_slopes(
        gradient,
        [columns, tokens],
        targets,
        values::<E::Wide>(&slopes),
    );
    logits
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

    use super::*;

    fn tensor(values: Vec<f64>, shape: [usize; 2], dtype: DType) -> FlexTensor {
        FlexTensor::from_data(TensorData::new(values, shape).convert_dtype(dtype))
    }

    fn numbers(seed: usize, count: usize) -> Vec<f64> {
        let values = (0..count).map(|i| ((i * 7919 + seed * 104_729) % 1000) as f64);
        values.map(|value| value / 250.0 - 2.0).collect()
    }

    fn read(tensor: &FlexTensor) -> Vec<f64> {
        tensor.clone().into_data().iter::<f64>().collect()
    }

    fn assert_close(got: &FlexTensor, twin: &FlexTensor, what: &str) {
        assert_eq!(got.layout().shape(), twin.layout().shape(), "{what}");
        assert_eq!(got.dtype(), twin.dtype(), "{what}");
        for (got, twin) in read(got).iter().zip(read(twin)) {
            // Chains round 16-bit values after each operation.
            let bound = match got.abs().max(1.0) {
                size if what.contains("16") => size * 0.05,
                size => size * 1e-5,
            };
            assert!((got - twin).abs() <= bound, "{what}: {got} {twin}");
        }
    }

    #[test]
    fn one_pass_is_the_chain_of_tensor_operations() {
        let step = AdamWStep {
            lr: 1e-2,
            beta_1: 0.9,
            beta_2: 0.99,
            epsilon: 1e-5,
            weight_decay: 0.1,
            time: 3,
            gradient_scale: 0.5,
        };
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            let what = format!("{dtype:?}");
            for (rows, columns) in [(0, 3), (1, 1), (5, 7)] {
                let [p, g, m] =
                    [1, 2, 3].map(|s| tensor(numbers(s, rows * columns), [rows, columns], dtype));
                let squares = numbers(4, rows * columns).iter().map(|x| x * x).collect();
                let v = tensor(squares, [rows, columns], dtype);
                let twin = twins::adamw::<Flex>(p.clone(), g.clone(), m.clone(), v.clone(), &step);
                let got = Flex::kernel_adamw(p, g, m, v, step);
                if matches!(dtype, DType::F32 | DType::F64) {
                    let bits = |t: FlexTensor| t.into_data().as_bytes().to_vec();
                    assert_eq!(bits(got.0.clone()), bits(twin.0.clone()), "{what}");
                }
                assert_close(&got.0, &twin.0, &what);
                assert_close(&got.1, &twin.1, &what);
                assert_close(&got.2, &twin.2, &what);
            }
        }
    }

    #[test]
    fn rows_of_logits_are_those_of_the_chain() {
        let rows = 4;
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            for (columns, tokens) in [(1, 1), (40, 37), (3, 0)] {
                let what = format!("{dtype:?}, {tokens} of {columns}");
                let logits = tensor(numbers(5, rows * columns), [rows, columns], dtype);
                let targets = match tokens {
                    0 => vec![-1; rows],
                    _ => vec![0, -1, tokens as i64 - 1, tokens as i64 / 2],
                };
                let targets = FlexTensor::from_data(TensorData::new(targets, [rows, 1]));
                let twin = twins::row_parts::<Flex>(logits.clone(), targets.clone(), tokens);
                let parts = Flex::kernel_row_parts(logits.clone(), targets.clone(), tokens);
                if tokens > 0 {
                    assert_close(&parts, &twin, &what);
                }
                let slopes = tensor(numbers(6, rows * 4), [rows, 4], twins::wide(dtype));
                let twin = twins::row_slopes::<Flex>(
                    logits.clone(),
                    targets.clone(),
                    slopes.clone(),
                    tokens,
                );
                let got = Flex::kernel_row_slopes(logits, targets, slopes, tokens);
                assert_close(&got, &twin, &what);
            }
        }
    }
}
