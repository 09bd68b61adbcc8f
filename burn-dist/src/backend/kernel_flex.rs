//! Kernels on Flex: plain Rust over the host memory that tensors are.

use burn::backend::ops::FloatTensorOps;
use burn::backend::{Element, Flex, flex::FlexTensor, flex::Layout};
use burn::tensor::{Bytes, DType};
use half::{bf16, f16};

use super::KernelBackend;
use super::flex_arrays::{Stored, owned, values, without_gaps};
use super::flex_steps::{WithCopy, adamw, adamw_bf16_copies, adamw_f16_copies, sgd};
use super::kernel_twins as twins;
use crate::kernels::{self, AdamWStep, ROW_PARTS, SgdStep, SquareSum};

fn is_kernel_float(dtype: DType) -> bool {
    matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16)
}

/// Whether kernels convert between these types with one rounding: from 64 bits to 16 they go by 32.
fn rounds_once(from: DType, to: DType) -> bool {
    let is_through_32_bits = from == DType::F64 && matches!(to, DType::F16 | DType::BF16);
    is_kernel_float(from) && is_kernel_float(to) && !is_through_32_bits
}

/// Runs a body with `$name` as the type of a float that kernels compute on.
macro_rules! with_float {
    ($dtype:expr, $name:ident => $body:expr) => {
        match $dtype {
            DType::F32 => {
                type $name = f32;
                $body
            }
            DType::F64 => {
                type $name = f64;
                $body
            }
            DType::F16 => {
                type $name = f16;
                $body
            }
            DType::BF16 => {
                type $name = bf16;
                $body
            }
            other => unreachable!("invariant: {other:?} goes another way"),
        }
    };
}

fn scaled_cast<E: Stored>(
    from: &FlexTensor,
    place: std::ops::Range<usize>,
    scale: f64,
    to: &mut [E],
) {
    with_float!(from.dtype(), A => {
        match scale == 1.0 && A::dtype() == E::dtype() {
            true => kernels::plain_copy(bytemuck::cast_slice(&values::<A>(from)[place]), to),
            false => kernels::scaled_copy(&values::<A>(from)[place], scale, to),
        }
    })
}

fn unpacked<E: Stored>(from: &FlexTensor, place: std::ops::Range<usize>, scale: f64) -> Vec<E> {
    with_float!(from.dtype(), A => kernels::scaled_vec(&values::<A>(from)[place], scale))
}

fn rank_sum<E: Stored>(parts: FlexTensor, is_mean: bool) -> FlexTensor {
    let parts = without_gaps(parts);
    let shape = parts.layout().shape().clone();
    let sum = kernels::rank_sum(values::<E>(&parts), shape[0], is_mean);
    let layout = Layout::contiguous(shape[1..].to_vec().into());
    FlexTensor::new(Bytes::from_elems(sum), layout, parts.dtype())
}

fn softmax_merge<E: Stored>(
    outputs: [FlexTensor; 2],
    logs: [FlexTensor; 2],
) -> (FlexTensor, FlexTensor)
where
    E::Wide: Stored,
{
    let ([output, other_output], [log, other_log]) = (outputs, logs);
    let (mut output, mut log) = (owned::<E>(output), owned::<E::Wide>(log));
    let (other_output, other_log) = (without_gaps(other_output), without_gaps(other_log));
    let columns = output.layout().shape()[1];
    kernels::softmax_merge::<E>(
        output.storage_mut(),
        log.storage_mut(),
        values(&other_output),
        values(&other_log),
        columns,
    );
    (output, log)
}

fn are_of_one_dtype(tensors: &[&FlexTensor]) -> bool {
    tensors
        .iter()
        .all(|tensor| tensor.dtype() == tensors[0].dtype())
}

/// Calls a function of the type of parameters and moments and of that of gradients; `None` for pairs that no
/// optimizer has.
macro_rules! with_step_types {
    ($tensors:expr, $function:ident $(, $more:expr)*) => {{
        let [parameter, gradient, moment_1, moment_2] = &$tensors;
        let is_one_type = are_of_one_dtype(&[parameter, moment_1, moment_2]);
        match (parameter.dtype(), gradient.dtype()) {
            _ if !is_one_type => Err($tensors),
            (DType::F32, DType::F32) => Ok($function::<f32, f32>($tensors $(, $more)*)),
            (DType::F32, DType::F16) => Ok($function::<f32, f16>($tensors $(, $more)*)),
            (DType::F32, DType::BF16) => Ok($function::<f32, bf16>($tensors $(, $more)*)),
            (DType::F64, DType::F64) => Ok($function::<f64, f64>($tensors $(, $more)*)),
            (DType::F16, DType::F16) => Ok($function::<f16, f16>($tensors $(, $more)*)),
            (DType::BF16, DType::BF16) => Ok($function::<bf16, bf16>($tensors $(, $more)*)),
            _ => Err($tensors),
        }
    }};
}

impl KernelBackend for Flex {
    fn kernel_adamw(
        parameter: FlexTensor,
        gradient: FlexTensor,
        moment_1: FlexTensor,
        moment_2: FlexTensor,
        step: AdamWStep,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let tensors = [parameter, gradient, moment_1, moment_2];
        with_step_types!(tensors, adamw, &step).unwrap_or_else(|tensors| {
            let [parameter, gradient, moment_1, moment_2] = tensors;
            twins::adamw::<Self>(parameter, gradient, moment_1, moment_2, &step)
        })
    }

    fn kernel_adamw_copies(
        parameter: FlexTensor,
        gradient: FlexTensor,
        moment_1: FlexTensor,
        moment_2: FlexTensor,
        step: AdamWStep,
        copy: DType,
    ) -> WithCopy {
        let tensors = [parameter, gradient, moment_1, moment_2];
        let stepped = match copy {
            _ if !rounds_once(tensors[0].dtype(), copy) => Err(tensors),
            DType::BF16 => with_step_types!(tensors, adamw_bf16_copies, &step),
            DType::F16 => with_step_types!(tensors, adamw_f16_copies, &step),
            _ => Err(tensors),
        };
        stepped.unwrap_or_else(|[parameter, gradient, moment_1, moment_2]| {
            let (parameter, moment_1, moment_2) =
                Self::kernel_adamw(parameter, gradient, moment_1, moment_2, step);
            let copy = Self::float_cast(parameter.clone(), copy.into());
            (parameter, moment_1, moment_2, copy)
        })
    }

    fn kernel_sgd(
        parameter: FlexTensor,
        gradient: FlexTensor,
        velocity: FlexTensor,
        step: SgdStep,
    ) -> (FlexTensor, FlexTensor) {
        let dtype = parameter.dtype();
        let is_one_type = are_of_one_dtype(&[&parameter, &gradient, &velocity]);
        if !is_one_type || !is_kernel_float(dtype) {
            return twins::sgd::<Self>(parameter, gradient, velocity, &step);
        }
        let tensors = [parameter, gradient, velocity];
        with_float!(dtype, E => sgd::<E>(tensors, &step))
    }

    fn kernel_pack(bucket: FlexTensor, part: FlexTensor, start: usize, scale: f64) -> FlexTensor {
        let dtype = bucket.dtype();
        if !rounds_once(part.dtype(), dtype) {
            return twins::pack::<Self>(bucket, part, start, scale);
        }
        let part = without_gaps(part);
        let len = part.layout().num_elements();
        with_float!(dtype, E => {
            let mut bucket = owned::<E>(bucket);
            let place = &mut bucket.storage_mut::<E>()[start..start + len];
            scaled_cast(&part, 0..len, scale, place);
            bucket
        })
    }

    fn kernel_unpack(
        bucket: FlexTensor,
        start: usize,
        len: usize,
        scale: f64,
        dtype: DType,
    ) -> FlexTensor {
        if !rounds_once(bucket.dtype(), dtype) {
            return twins::unpack::<Self>(bucket, start, len, scale, dtype);
        }
        if scale == 1.0 && bucket.dtype() == dtype {
            return bucket.narrow(0, start, len);
        }
        let bucket = without_gaps(bucket);
        let layout = Layout::contiguous([len].into());
        let place = start..start + len;
        let part = with_float!(dtype, E => Bytes::from_elems(unpacked::<E>(&bucket, place, scale)));
        FlexTensor::new(part, layout, dtype)
    }

    fn kernel_square_sum(
        first: FlexTensor,
        second: FlexTensor,
        third: FlexTensor,
        fourth: FlexTensor,
        fifth: FlexTensor,
        sixth: FlexTensor,
        seventh: FlexTensor,
        eighth: FlexTensor,
    ) -> SquareSum {
        let mut sum = SquareSum::default();
        for part in [first, second, third, fourth, fifth, sixth, seventh, eighth]
            .into_iter()
            .map(without_gaps)
        {
            match part.dtype() {
                DType::F32 | DType::Flex32 => sum.add_f32(values(&part)),
                DType::F64 => sum.add_f64(values(&part)),
                DType::F16 => sum.add_f16(values(&part)),
                DType::BF16 => sum.add_bf16(values(&part)),
                other => unreachable!("invariant: gradients are floats, not {other:?}"),
            }
        }
        sum
    }

    fn kernel_rank_sum(parts: FlexTensor, is_mean: bool) -> FlexTensor {
        let dtype = parts.dtype();
        match is_kernel_float(dtype) {
            true => with_float!(dtype, E => rank_sum::<E>(parts, is_mean)),
            false => twins::rank_sum::<Self>(parts, is_mean),
        }
    }

    fn kernel_softmax_merge(
        output: FlexTensor,
        log: FlexTensor,
        other_output: FlexTensor,
        other_log: FlexTensor,
    ) -> (FlexTensor, FlexTensor) {
        let (dtype, wide) = (output.dtype(), twins::wide(output.dtype()));
        let fits = is_kernel_float(dtype)
            && are_of_one_dtype(&[&output, &other_output])
            && [&log, &other_log].iter().all(|log| log.dtype() == wide);
        let (outputs, logs) = ([output, other_output], [log, other_log]);
        match fits {
            true => with_float!(dtype, E => softmax_merge::<E>(outputs, logs)),
            false => twins::softmax_merge::<Self>(outputs, logs),
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
    use burn::tensor::{Element, bf16, f16};
    use bytemuck::Pod;
    use proptest::prelude::*;

    use crate::communicator::{ReduceOp, reduce_in_rank_order};
    use crate::kernels::{KernelFloat, WideFloat, rank_sum};

    /// Against what collectives on the host do.
    fn check<E: KernelFloat + Element + Pod>(values: &[f32], ranks: usize) {
        let len = values.len() / ranks;
        let narrow = |&value: &f32| E::narrow(E::Wide::from_f64(value.into()));
        let parts: Vec<E> = values[..len * ranks].iter().map(narrow).collect();
        let bytes: Vec<&[u8]> = (0..ranks)
            .map(|rank| bytemuck::cast_slice(&parts[rank * len..][..len]))
            .collect();
        for (is_mean, op) in [(false, ReduceOp::Sum), (true, ReduceOp::Mean)] {
            let mut right = parts[..len].to_vec();
            let target = bytemuck::cast_slice_mut(&mut right);
            reduce_in_rank_order(E::dtype(), op, 0, &bytes, target);
            for (got, right) in rank_sum(&parts, ranks, is_mean).iter().zip(&right) {
                let (got, right) = (got.widen().to_f64(), right.widen().to_f64());
                assert!(got.to_bits() == right.to_bits() || got.is_nan() && right.is_nan());
            }
            assert_eq!(rank_sum(&parts, ranks, is_mean).len(), len);
        }
    }

    proptest! {
        #[test]
        fn a_rank_sum_is_what_collectives_do(
            bits in prop::collection::vec(any::<u32>(), 0..6000),
            ranks in 1usize..6,
        ) {
            let values: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
            check::<f32>(&values, ranks);
            check::<f64>(&values, ranks);
            check::<f16>(&values, ranks);
            check::<bf16>(&values, ranks);
        }
    }
}
