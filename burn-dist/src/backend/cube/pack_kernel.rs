//! Packing and unpacking: elements of one array to a place in another, times a number. See
//! [`scaled_copy`](crate::kernels::scaled_copy).
#![allow(unsafe_code)]

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Shape};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{address, new_beside, units, vector_size};

#[cube(launch_unchecked, address_type = "dynamic")]
fn scaled_copy_kernel<A: Float, B: Float, N: Size>(
    from: &Tensor<Vector<A, N>>,
    to: &mut Tensor<Vector<B, N>>,
    from_start: usize,
    to_start: usize,
    scale: f32,
    vectors: usize,
    #[define(A, B)] _dtypes: [ElemType; 2],
) {
    if ABSOLUTE_POS >= vectors {
        terminate!();
    }
    let wide = Vector::<f32, N>::cast_from(from[from_start + ABSOLUTE_POS]);
    to[to_start + ABSOLUTE_POS] = Vector::cast_from(wide * Vector::new(scale));
}

/// `to[to_start..][..len] = from[from_start..][..len] * scale`, in the memory of `to`; both without gaps, `len` not
/// 0.
fn scaled_copy(
    (from, from_start): (CubeTensor, usize),
    (to, to_start): (CubeTensor, usize),
    len: usize,
    scale: f64,
) {
    let lens = [from.meta.num_elements(), to.meta.num_elements()];
    assert!(from_start + len <= lens[0], "a part of what is there");
    assert!(to_start + len <= lens[1], "a place that is there");
    let dtypes = [from.dtype, to.dtype];
    let client = from.client.clone();
    let vector_size = vector_size(
        &client,
        &[lens[0], lens[1], from_start, to_start, len],
        &dtypes,
    );
    let vectors = len / vector_size;
    let (cube_count, cube_dim) = units(&client, vectors);
    let at = address(&[&from, &to]);
    // SAFETY: every unit checks that its place is below `len`, and both places end inside their arrays.
    unsafe {
        scaled_copy_kernel::launch_unchecked(
            &client,
            cube_count,
            cube_dim,
            at,
            vector_size,
            from.into_tensor_arg(),
            to.into_tensor_arg(),
            from_start / vector_size,
            to_start / vector_size,
            scale as f32,
            vectors,
            dtypes.map(dtype_to_storage_type),
        );
    }
}

/// `[n], [..] -> [n]`, both without gaps, the part not empty: in the bucket's memory, or in a copy's if somebody
/// else holds it.
pub(super) fn pack(bucket: CubeTensor, part: CubeTensor, start: usize, scale: f64) -> CubeTensor {
    let bucket = match bucket.can_mut() {
        true => bucket,
        false => bucket.copy(),
    };
    let len = part.meta.num_elements();
    scaled_copy((part, 0), (bucket.clone(), start), len, scale);
    bucket
}

/// `[n] -> [len]`, without gaps, `len` not 0.
pub(super) fn unpack(
    bucket: CubeTensor,
    start: usize,
    len: usize,
    scale: f64,
    dtype: DType,
) -> CubeTensor {
    let part = new_beside(&bucket, Shape::new([len]), dtype);
    scaled_copy((bucket, start), (part.clone(), 0), len, scale);
    part
}
