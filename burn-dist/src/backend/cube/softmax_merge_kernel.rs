//! Attention over two sets of keys, made into attention over both: see
//! [`softmax_merge`](crate::kernels::softmax_merge).
#![allow(unsafe_code)]

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{address, new_beside, output, units, vector_size};

/// One unit per vector; each computes its row's weights again, which costs less than to read them.
#[cube(launch_unchecked, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
fn softmax_merge_kernel<F: Float, N: Size>(
    output: &Tensor<Vector<F, N>>,
    other_output: &Tensor<Vector<F, N>>,
    log: &Tensor<f32>,
    other_log: &Tensor<f32>,
    output_out: &mut Tensor<Vector<F, N>>,
    log_out: &mut Tensor<f32>,
    vectors: usize,
    vectors_per_row: usize,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= vectors {
        terminate!();
    }
    let row = ABSOLUTE_POS / vectors_per_row;
    let zero = Vector::<f32, N>::new(0.0);
    let (a, b) = (log[row], other_log[row]);
    // Below every finite number there is only minus infinity.
    let lowest = f32::min_value();
    let (no_keys, no_other_keys) = (a < lowest, b < lowest);
    let larger = select(b > a, b, a);
    // A difference of two infinities is no number.
    let base = select(no_keys && no_other_keys, 0.0, larger);
    let (part, other_part) = ((a - base).exp(), (b - base).exp());
    let sum = part + other_part;
    let divisor = select(no_keys && no_other_keys, 1.0, sum);
    // An output without keys may be anything.
    let o = select(no_keys, zero, Vector::cast_from(output[ABSOLUTE_POS]));
    let other = select(
        no_other_keys,
        zero,
        Vector::cast_from(other_output[ABSOLUTE_POS]),
    );
    let merged = o * Vector::new(part / divisor) + other * Vector::new(other_part / divisor);
    output_out[ABSOLUTE_POS] = Vector::cast_from(merged);
    if ABSOLUTE_POS.is_multiple_of(vectors_per_row) {
        let total = select(no_keys, b, select(no_other_keys, a, base + sum.ln()));
        log_out[row] = total;
    }
}

/// `[rows, columns]` twice and `[rows, 1]` in 32 bits twice, all without gaps, outputs of one type and not empty.
pub(super) fn softmax_merge(
    [first, other]: [CubeTensor; 2],
    [log, other_log]: [CubeTensor; 2],
) -> (CubeTensor, CubeTensor) {
    let dtype = first.dtype;
    let (rows, columns) = (first.meta.shape()[0], first.meta.shape()[1]);
    assert_eq!(
        other.meta.shape(),
        first.meta.shape(),
        "outputs of one shape"
    );
    for log in [&log, &other_log] {
        assert_eq!(log.meta.num_elements(), rows, "a logarithm for each row");
    }
    let client = first.client.clone();
    let vector_size = vector_size(&client, &[columns], &[dtype]);
    let vectors_per_row = columns / vector_size;
    let vectors = rows * vectors_per_row;
    let (cube_count, cube_dim) = units(&client, vectors);
    let at = address(&[&first, &other]);
    let (merged, to_merged) = output(&first, 0);
    // Not in place: all units of a row read its logarithms.
    let total = new_beside(&log, log.meta.shape().clone(), DType::F32);
    // SAFETY: every unit checks that its place is below the vectors of an output, so that its row is one of them.
    unsafe {
        softmax_merge_kernel::launch_unchecked(
            &client,
            cube_count,
            cube_dim,
            at,
            vector_size,
            first.into_tensor_arg(),
            other.into_tensor_arg(),
            log.into_tensor_arg(),
            other_log.into_tensor_arg(),
            to_merged,
            total.clone().into_tensor_arg(),
            vectors,
            vectors_per_row,
            dtype_to_storage_type(dtype),
        );
    }
    (merged, total)
}
