//! Cross entropy of the columns of logits that a rank has: see [`row_parts`](crate::kernels::row_parts) and
//! [`row_slopes`](crate::kernels::row_slopes).
#![allow(unsafe_code)]

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Shape};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{Planes, address, new_beside, output, planes, units, vector_size};
use crate::kernels::{ROW_PARTS, ROW_SLOPES};

/// What exponents are taken from: the largest, or 0 where that is minus infinity, of which differences are no
/// numbers.
#[cube]
fn base_of(largest: f32) -> f32 {
    select(largest < f32::min_value(), 0.0, largest)
}

/// One plane per row; each unit keeps the largest logit that it has met, and the sum of exponentials from there.
#[cube(launch_unchecked, address_type = "dynamic")]
fn row_parts_kernel<F: Float, I: Int, N: Size>(
    logits: &Tensor<Vector<F, N>>,
    targets: &Tensor<I>,
    parts: &mut Tensor<f32>,
    rows: usize,
    vectors_per_row: usize,
    tokens: usize,
    #[comptime] lanes: u32,
    #[define(F, I)] _dtypes: [ElemType; 2],
) {
    let row = CUBE_POS * CUBE_DIM_Y as usize + UNIT_POS_Y as usize;
    if row >= rows {
        terminate!();
    }
    let is_here = targets[row] >= I::from_int(0);
    let target = usize::cast_from(targets[row]);
    let nothing = f32::new(f32::NEG_INFINITY);
    let mut largest = nothing;
    let mut exponentials = 0.0f32;
    let mut of_target = 0.0f32;
    let mut sum = 0.0f32;
    let mut at = UNIT_POS_X as usize;
    while at * N::value() < tokens {
        let z = Vector::<f32, N>::cast_from(logits[row * vectors_per_row + at]);
        let mut most = largest;
        #[unroll]
        for i in 0..N::value() {
            let column = at * N::value() + i;
            let x = z.extract(i);
            let is_token = column < tokens;
            most = select(is_token && x > most, x, most);
            sum += select(is_token, x, 0.0);
            of_target += select(is_token && is_here && column == target, x, 0.0);
        }
        let base = base_of(most);
        exponentials *= (largest - base).exp();
        #[unroll]
        for i in 0..N::value() {
            let is_token = at * N::value() + i < tokens;
            exponentials += (select(is_token, z.extract(i), nothing) - base).exp();
        }
        largest = most;
        at += lanes as usize;
    }
    if lanes > 1 {
        let most = plane_max(largest);
        exponentials = plane_sum(exponentials * (largest - base_of(most)).exp());
        of_target = plane_sum(of_target);
        sum = plane_sum(sum);
        largest = most;
    }
    if UNIT_POS_X == 0 {
        let place = row * ROW_PARTS;
        parts[place] = largest;
        // A row of nothing but minus infinity has no such sum.
        parts[place + 1] = select(largest == nothing, f32::new(f32::NAN), exponentials);
        parts[place + 2] = of_target;
        parts[place + 3] = sum;
    }
}

/// `[rows, columns], [rows, 1] -> [rows, ROW_PARTS]` in 32 bits: no gaps, no dim of 0, at least one token.
pub(super) fn row_parts(logits: CubeTensor, targets: CubeTensor, tokens: usize) -> CubeTensor {
    let (rows, columns) = (logits.meta.shape()[0], logits.meta.shape()[1]);
    assert!(tokens <= columns, "tokens have columns");
    assert_eq!(targets.meta.num_elements(), rows, "a target for each row");
    let dtypes = [logits.dtype, targets.dtype];
    let client = logits.client.clone();
    let vector_size = vector_size(&client, &[columns], &dtypes[..1]);
    let Planes { lanes, count, dim } = planes(&client, rows);
    let parts = new_beside(&logits, Shape::new([rows, ROW_PARTS]), DType::F32);
    let at = address(&[&logits, &parts]);
    // SAFETY: planes check that their row is one of all; units stop before `tokens`, which are no more than columns.
    unsafe {
        row_parts_kernel::launch_unchecked(
            &client,
            count,
            dim,
            at,
            vector_size,
            logits.into_tensor_arg(),
            targets.into_tensor_arg(),
            parts.clone().into_tensor_arg(),
            rows,
            columns / vector_size,
            tokens,
            lanes,
            dtypes.map(dtype_to_storage_type),
        );
    }
    parts
}

#[cube(launch_unchecked, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
fn row_slopes_kernel<F: Float, I: Int, N: Size>(
    logits: &Tensor<Vector<F, N>>,
    targets: &Tensor<I>,
    slopes: &Tensor<f32>,
    gradient_out: &mut Tensor<Vector<F, N>>,
    vectors: usize,
    vectors_per_row: usize,
    tokens: usize,
    #[define(F, I)] _dtypes: [ElemType; 2],
) {
    if ABSOLUTE_POS >= vectors {
        terminate!();
    }
    let row = ABSOLUTE_POS / vectors_per_row;
    let first = ABSOLUTE_POS % vectors_per_row * N::value();
    let is_here = targets[row] >= I::from_int(0);
    let target = usize::cast_from(targets[row]);
    let place = row * ROW_SLOPES;
    let largest = slopes[place];
    let factor = slopes[place + 1];
    let every = slopes[place + 2];
    let of_target = slopes[place + 3];
    let z = Vector::<f32, N>::cast_from(logits[ABSOLUTE_POS]);
    let mut gradient = Vector::<F, N>::empty();
    #[unroll]
    for i in 0..N::value() {
        let column = first + i;
        let slope = (z.extract(i) - largest).exp() * factor + every;
        let at_target = is_here && column == target;
        let slope = select(at_target, slope - of_target, slope);
        gradient.insert(i, F::cast_from(select(column < tokens, slope, 0.0)));
    }
    gradient_out[ABSOLUTE_POS] = gradient;
}

/// `[rows, columns], [rows, 1], [rows, ROW_SLOPES] -> [rows, columns]`, slopes in 32 bits: no gaps, no dim of 0; in
/// the logits' memory if nobody else holds it.
pub(super) fn row_slopes(
    logits: CubeTensor,
    targets: CubeTensor,
    slopes: CubeTensor,
    tokens: usize,
) -> CubeTensor {
    let (rows, columns) = (logits.meta.shape()[0], logits.meta.shape()[1]);
    assert_eq!(targets.meta.num_elements(), rows, "a target for each row");
    assert_eq!(
        slopes.meta.num_elements(),
        rows * ROW_SLOPES,
        "a quadruple for each row"
    );
    let dtypes = [logits.dtype, targets.dtype];
    let client = logits.client.clone();
    let vector_size = vector_size(&client, &[columns], &dtypes[..1]);
    let vectors_per_row = columns / vector_size;
    let vectors = rows * vectors_per_row;
    let (cube_count, cube_dim) = units(&client, vectors);
    let at = address(&[&logits, &slopes]);
    let (gradient, to_gradient) = output(&logits, 0);
    // SAFETY: every unit checks that its place is below the vectors of the logits, so that its row is one of them.
    unsafe {
        row_slopes_kernel::launch_unchecked(
            &client,
            cube_count,
            cube_dim,
            at,
            vector_size,
            logits.into_tensor_arg(),
            targets.into_tensor_arg(),
            slopes.into_tensor_arg(),
            to_gradient,
            vectors,
            vectors_per_row,
            tokens,
            dtypes.map(dtype_to_storage_type),
        );
    }
    gradient
}
