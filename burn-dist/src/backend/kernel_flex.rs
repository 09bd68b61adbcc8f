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
    let len = tensor.layout().num_elements();
    let whole = tensor.is_contiguous()
        && tensor.layout().start_offset() == 0
        && tensor.storage::<E>().len() == len;
    if whole && tensor.is_unique() {
        return tensor;
    }
    from_values(values::<E>(&tensor.to_contiguous()).to_vec(), &tensor)
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
    mut tensors: [FlexTensor; 4],
    step: &AdamWStep,
) -> (FlexTensor, FlexTensor, FlexTensor) {
    // Views get memory of their own.
    for tensor in &mut tensors {
        if !tensor.is_contiguous() {
            *tensor = tensor.to_contiguous();
        }
    }
    let [mut parameter, gradient, moment_1, moment_2] = tensors;
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
    let logits = logits.to_contiguous();
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
