//! The sum over the first dim, in order.
#![allow(unsafe_code)]

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::Shape;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{address, new_beside, units, vector_size};

#[cube(launch_unchecked, address_type = "dynamic")]
fn rank_sum_kernel<F: Float, N: Size>(
    parts: &Tensor<Vector<F, N>>,
    sum_out: &mut Tensor<Vector<F, N>>,
    ranks: usize,
    vectors: usize,
    #[comptime] is_mean: bool,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= vectors {
        terminate!();
    }
    let mut sum = Vector::<f32, N>::cast_from(parts[ABSOLUTE_POS]);
    for rank in 1..ranks {
        sum += Vector::cast_from(parts[rank * vectors + ABSOLUTE_POS]);
    }
    let result = if is_mean {
        sum / Vector::new(f32::cast_from(ranks))
    } else {
        sum
    };
    sum_out[ABSOLUTE_POS] = Vector::cast_from(result);
}

/// `[n, ..] -> [..]`: parts without gaps, at least one, none of them empty.
pub(super) fn rank_sum(parts: CubeTensor, is_mean: bool) -> CubeTensor {
    let dtype = parts.dtype;
    let shape = parts.meta.shape().clone();
    let ranks = shape[0];
    let shape = Shape::from(shape[1..].to_vec());
    let len = shape.num_elements();
    let client = parts.client.clone();
    let vector_size = vector_size(&client, &[len], &[dtype]);
    let vectors = len / vector_size;
    let (cube_count, cube_dim) = units(&client, vectors);
    let at = address(&[&parts]);
    let sum = new_beside(&parts, shape, dtype);
    // SAFETY: every unit checks that its place is below the vectors of one part; there are `ranks` parts.
    unsafe {
        rank_sum_kernel::launch_unchecked(
            &client,
            cube_count,
            cube_dim,
            at,
            vector_size,
            parts.into_tensor_arg(),
            sum.clone().into_tensor_arg(),
            ranks,
            vectors,
            is_mean,
            dtype_to_storage_type(dtype),
        );
    }
    sum
}
