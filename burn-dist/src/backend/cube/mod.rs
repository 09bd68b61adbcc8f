//! Kernels on CubeCL's runtimes: CUDA, ROCm, Metal, Vulkan, and the CPU.
//!
//! They store 16 and 32 bits and compute in 32; what does not fit goes to the twins.
//!
//! | file | what |
//! |---|---|
//! | `launch.rs` | how kernels are spread over a device, and where results go |
//! | `adamw_kernel.rs`, `sgd_kernel.rs` | a step of AdamW, of gradient descent with momentum |
//! | `pack_kernel.rs` | packing and unpacking |
//! | `square_sum_kernel.rs` | sums of squares of eight tensors in one launch |
//! | `row_loss_kernel.rs` | cross entropy of rows of logits, and its gradient |
//! | `rank_sum_kernel.rs` | the sum over the first dim, in order |
//! | `softmax_merge_kernel.rs` | attention over parts of the keys, put together |

mod adamw_kernel;
mod launch;
mod pack_kernel;
mod rank_sum_kernel;
mod row_loss_kernel;
mod sgd_kernel;
mod softmax_merge_kernel;
mod square_sum_kernel;

use burn::backend::ops::FloatTensorOps;
use burn::backend::try_read_sync;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::zeros;
use burn_cubecl::tensor::CubeTensor;

use super::KernelBackend;
use super::kernel_twins as twins;
use crate::kernels::{AdamWStep, ROW_PARTS, SgdStep, SquareSum};
use launch::{is_small_float, new_beside};

fn is_empty(tensor: &CubeTensor) -> bool {
    tensor.meta.num_elements() == 0
}

/// Without elements: operations of Burn, and so the twins, do not take all of such views.
fn empty(beside: &CubeTensor, shape: Shape, dtype: DType) -> CubeTensor {
    debug_assert_eq!(shape.num_elements(), 0);
    new_beside(beside, shape, dtype)
}

/// A merge of outputs without elements, whose rows may still have logarithms.
fn merge_logs(outputs: [CubeTensor; 2], logs: [CubeTensor; 2]) -> (CubeTensor, CubeTensor) {
    let [output, _] = outputs;
    if is_empty(&logs[0]) {
        let [log, _] = logs;
        return (output, log);
    }
    let rows = Shape::new([logs[0].meta.num_elements(), 1]);
    let column = zeros(output.device.clone(), rows, output.dtype);
    let (_, log) = twins::softmax_merge::<CubeBackend>([column.clone(), column], logs);
    (output, log)
}

fn is_target(dtype: DType) -> bool {
    matches!(dtype, DType::I32 | DType::I64)
}

/// Whether the kernels of AdamW take these types: moments as parameters, gradients of no more bits.
fn fits_adamw([parameter, gradient, moment_1, moment_2]: [&CubeTensor; 4]) -> bool {
    let dtype = parameter.dtype;
    let is_one_type = [moment_1, moment_2].iter().all(|m| m.dtype == dtype);
    let widens = dtype == DType::F32 && is_small_float(gradient.dtype);
    is_one_type && is_small_float(dtype) && (gradient.dtype == dtype || widens)
}

/// Adds the partial sums that [`square_sum_kernel::square_sums`] makes of tensors of one type.
fn add_partials(tensors: &[CubeTensor], sum: &mut SquareSum) {
    let partials = square_sum_kernel::square_sums(tensors);
    let read = try_read_sync(CubeBackend::float_into_data(partials));
    let Some(Ok(Ok(partials))) = read.map(|data| data.map(|data| data.try_into_vec::<f32>()))
    else {
        // What cannot be read is not known to be finite.
        return sum.add_not_finite(1);
    };
    for [square, not_finite] in partials.as_chunks().0 {
        sum.add_sums(&[*square]);
        sum.add_not_finite(*not_finite as u64);
    }
}

impl KernelBackend for CubeBackend {
    fn kernel_adamw(
        parameter: CubeTensor,
        gradient: CubeTensor,
        moment_1: CubeTensor,
        moment_2: CubeTensor,
        step: AdamWStep,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        if is_empty(&parameter) {
            return (parameter, moment_1, moment_2);
        }
        if !fits_adamw([&parameter, &gradient, &moment_1, &moment_2]) {
            return twins::adamw::<Self>(parameter, gradient, moment_1, moment_2, &step);
        }
        let tensors = [parameter, gradient, moment_1, moment_2].map(into_contiguous);
        let ([parameter, moment_1, moment_2], _) = adamw_kernel::adamw(tensors, &step, None);
        (parameter, moment_1, moment_2)
    }

    fn kernel_adamw_copies(
        parameter: CubeTensor,
        gradient: CubeTensor,
        moment_1: CubeTensor,
        moment_2: CubeTensor,
        step: AdamWStep,
        copy: DType,
    ) -> (CubeTensor, CubeTensor, CubeTensor, CubeTensor) {
        if is_empty(&parameter) {
            let copy = empty(&parameter, parameter.meta.shape().clone(), copy);
            return (parameter, moment_1, moment_2, copy);
        }
        let fits = fits_adamw([&parameter, &gradient, &moment_1, &moment_2]);
        if !fits || !is_small_float(copy) {
            let (parameter, moment_1, moment_2) =
                Self::kernel_adamw(parameter, gradient, moment_1, moment_2, step);
            let copy = Self::float_cast(parameter.clone(), copy.into());
            return (parameter, moment_1, moment_2, copy);
        }
        let tensors = [parameter, gradient, moment_1, moment_2].map(into_contiguous);
        let ([parameter, moment_1, moment_2], copy) =
            adamw_kernel::adamw(tensors, &step, Some(copy));
        let copy = copy.expect("invariant: it was asked for");
        (parameter, moment_1, moment_2, copy)
    }

    fn kernel_sgd(
        parameter: CubeTensor,
        gradient: CubeTensor,
        velocity: CubeTensor,
        step: SgdStep,
    ) -> (CubeTensor, CubeTensor) {
        if is_empty(&parameter) {
            return (parameter, velocity);
        }
        let dtype = parameter.dtype;
        let is_one_type = [&gradient, &velocity].iter().all(|t| t.dtype == dtype);
        if !is_one_type || !is_small_float(dtype) {
            return twins::sgd::<Self>(parameter, gradient, velocity, &step);
        }
        sgd_kernel::sgd([parameter, gradient, velocity].map(into_contiguous), &step)
    }

    fn kernel_pack(bucket: CubeTensor, part: CubeTensor, start: usize, scale: f64) -> CubeTensor {
        if is_empty(&part) {
            return bucket;
        }
        if !is_small_float(bucket.dtype) || !is_small_float(part.dtype) {
            return twins::pack::<Self>(bucket, part, start, scale);
        }
        let [bucket, part] = [bucket, part].map(into_contiguous);
        pack_kernel::pack(bucket, part, start, scale)
    }

    fn kernel_unpack(
        bucket: CubeTensor,
        start: usize,
        len: usize,
        scale: f64,
        dtype: DType,
    ) -> CubeTensor {
        if len == 0 {
            return empty(&bucket, Shape::new([0]), dtype);
        }
        if !is_small_float(bucket.dtype) || !is_small_float(dtype) {
            return twins::unpack::<Self>(bucket, start, len, scale, dtype);
        }
        pack_kernel::unpack(into_contiguous(bucket), start, len, scale, dtype)
    }

    fn kernel_square_sum(
        first: CubeTensor,
        second: CubeTensor,
        third: CubeTensor,
        fourth: CubeTensor,
        fifth: CubeTensor,
        sixth: CubeTensor,
        seventh: CubeTensor,
        eighth: CubeTensor,
    ) -> SquareSum {
        let mut sum = SquareSum::default();
        let tensors = [first, second, third, fourth, fifth, sixth, seventh, eighth];
        let mut tensors: Vec<CubeTensor> = tensors.into_iter().filter(|t| !is_empty(t)).collect();
        while let Some(dtype) = tensors.first().map(|tensor| tensor.dtype) {
            let (same, others) = tensors.into_iter().partition(|t| t.dtype == dtype);
            tensors = others;
            if is_small_float(dtype) {
                let same: Vec<CubeTensor> = same;
                let same: Vec<CubeTensor> = same.into_iter().map(into_contiguous).collect();
                add_partials(&same, &mut sum);
            } else {
                sum.merge(twins::exact_square_sum::<Self>(same));
            }
        }
        sum
    }

    fn kernel_rank_sum(parts: CubeTensor, is_mean: bool) -> CubeTensor {
        if is_empty(&parts) {
            let shape = Shape::from(parts.meta.shape()[1..].to_vec());
            return empty(&parts, shape, parts.dtype);
        }
        if !is_small_float(parts.dtype) {
            return twins::rank_sum::<Self>(parts, is_mean);
        }
        rank_sum_kernel::rank_sum(into_contiguous(parts), is_mean)
    }

    fn kernel_softmax_merge(
        output: CubeTensor,
        log: CubeTensor,
        other_output: CubeTensor,
        other_log: CubeTensor,
    ) -> (CubeTensor, CubeTensor) {
        let dtype = output.dtype;
        let is_one_type = other_output.dtype == dtype;
        let fits = is_one_type && [&log, &other_log].iter().all(|log| log.dtype == DType::F32);
        let (outputs, logs) = ([output, other_output], [log, other_log]);
        if is_empty(&outputs[0]) {
            return merge_logs(outputs, logs);
        }
        if !fits || !is_small_float(dtype) {
            return twins::softmax_merge::<Self>(outputs, logs);
        }
        let (outputs, logs) = (outputs.map(into_contiguous), logs.map(into_contiguous));
        softmax_merge_kernel::softmax_merge(outputs, logs)
    }

    fn kernel_row_parts(logits: CubeTensor, targets: CubeTensor, tokens: usize) -> CubeTensor {
        if logits.meta.shape()[0] == 0 {
            return empty(
                &logits,
                Shape::new([0, ROW_PARTS]),
                twins::wide(logits.dtype),
            );
        }
        let fits = is_small_float(logits.dtype) && is_target(targets.dtype);
        if !fits || tokens == 0 {
            return twins::row_parts::<Self>(logits, targets, tokens);
        }
        let [logits, targets] = [logits, targets].map(into_contiguous);
        row_loss_kernel::row_parts(logits, targets, tokens)
    }

    fn kernel_row_slopes(
        logits: CubeTensor,
        targets: CubeTensor,
        slopes: CubeTensor,
        tokens: usize,
    ) -> CubeTensor {
        if is_empty(&logits) {
            return logits;
        }
        let fits = is_small_float(logits.dtype) && is_target(targets.dtype);
        if !fits || slopes.dtype != DType::F32 {
            return twins::row_slopes::<Self>(logits, targets, slopes, tokens);
        }
        let [logits, targets, slopes] = [logits, targets, slopes].map(into_contiguous);
        row_loss_kernel::row_slopes(logits, targets, slopes, tokens)
    }
}
