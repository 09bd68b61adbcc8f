//! Sums of squares of up to eight arrays in one launch.
#![allow(unsafe_code)]

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Shape};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{Planes, address, new_beside, planes, vector_size};

/// Tensors of one launch.
const TENSORS: usize = 8;

/// Elements of the smallest block; a multiple of what a plane reads at once.
const BLOCK: usize = 4096;

/// Blocks that a launch has at most, but for one per tensor: the host adds up as many sums.
const MOST_BLOCKS: usize = 4096;

/// Of each tensor the number of its last block, plus one.
#[derive(CubeLaunch, CubeType)]
struct BlockEnds {
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    g: usize,
    h: usize,
}

/// What a unit finds in its share of a block: the sum of squares of what is finite, and how many are not.
#[cube]
fn squares<F: Float, N: Size>(
    values: &Tensor<Vector<F, N>>,
    block: usize,
    block_len: usize,
    #[comptime] lanes: u32,
) -> (f32, u32) {
    let start = block * (block_len / N::value());
    let end = min(start + block_len / N::value(), values.len());
    let mut sums = Vector::<f32, N>::new(0.0);
    let mut counts = Vector::<u32, N>::new(0);
    let mut at = start + UNIT_POS_X as usize;
    while at < end {
        let x = Vector::<f32, N>::cast_from(values[at]);
        // False of what is no number.
        let is_finite = x.abs().less_equal(&Vector::new(f32::max_value()));
        sums += select_many(is_finite, x * x, Vector::new(0.0));
        counts += select_many(is_finite, Vector::new(0u32), Vector::new(1u32));
        at += lanes as usize;
    }
    let mut sum = 0.0f32;
    let mut count = 0u32;
    #[unroll]
    for i in 0..N::value() {
        sum += sums.extract(i);
        count += counts.extract(i);
    }
    (sum, count)
}

/// `partials` are `[blocks, 2]`: for each block the sum of squares of what is finite, and how many are not.
#[cube(launch_unchecked, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
fn square_sum_kernel<
    T: Float,
    A: Size,
    B: Size,
    C: Size,
    D: Size,
    E: Size,
    F: Size,
    G: Size,
    H: Size,
>(
    first: &Tensor<Vector<T, A>>,
    second: &Tensor<Vector<T, B>>,
    third: &Tensor<Vector<T, C>>,
    fourth: &Tensor<Vector<T, D>>,
    fifth: &Tensor<Vector<T, E>>,
    sixth: &Tensor<Vector<T, F>>,
    seventh: &Tensor<Vector<T, G>>,
    eighth: &Tensor<Vector<T, H>>,
    partials: &mut Tensor<f32>,
    ends: BlockEnds,
    block_len: usize,
    #[comptime] lanes: u32,
    #[define(T)] _dtype: ElemType,
) {
    let block = CUBE_POS * CUBE_DIM_Y as usize + UNIT_POS_Y as usize;
    let mut sum = 0.0f32;
    let mut count = 0u32;
    if block < ends.a {
        let (s, n) = squares::<T, A>(first, block, block_len, lanes);
        sum = s;
        count = n;
    } else if block < ends.b {
        let (s, n) = squares::<T, B>(second, block - ends.a, block_len, lanes);
        sum = s;
        count = n;
    } else if block < ends.c {
        let (s, n) = squares::<T, C>(third, block - ends.b, block_len, lanes);
        sum = s;
        count = n;
    } else if block < ends.d {
        let (s, n) = squares::<T, D>(fourth, block - ends.c, block_len, lanes);
        sum = s;
        count = n;
    } else if block < ends.e {
        let (s, n) = squares::<T, E>(fifth, block - ends.d, block_len, lanes);
        sum = s;
        count = n;
    } else if block < ends.f {
        let (s, n) = squares::<T, F>(sixth, block - ends.e, block_len, lanes);
        sum = s;
        count = n;
    } else if block < ends.g {
        let (s, n) = squares::<T, G>(seventh, block - ends.f, block_len, lanes);
        sum = s;
        count = n;
    } else if block < ends.h {
        let (s, n) = squares::<T, H>(eighth, block - ends.g, block_len, lanes);
        sum = s;
        count = n;
    }
    if lanes > 1 {
        sum = plane_sum(sum);
        count = plane_sum(count);
    }
    if UNIT_POS_X == 0 && block < ends.h {
        partials[block * 2] = sum;
        partials[block * 2 + 1] = f32::cast_from(count);
    }
}

/// One to eight tensors without gaps, of one type and not empty, to `[blocks, 2]`: sums of squares of what is
/// finite, and how many elements are not.
pub(super) fn square_sums(tensors: &[CubeTensor]) -> CubeTensor {
    let first = &tensors[0];
    assert!(tensors.len() <= TENSORS, "as many as a launch takes");
    let (client, dtype) = (first.client.clone(), first.dtype);
    let lens = tensors.iter().map(|tensor| tensor.meta.num_elements());
    let total: usize = lens.sum();
    let block_len = BLOCK * total.div_ceil(BLOCK * MOST_BLOCKS);
    let mut blocks = 0;
    let arguments: [_; TENSORS] = std::array::from_fn(|number| {
        // What is not there has no blocks.
        let tensor = tensors.get(number);
        blocks += tensor.map_or(0, |tensor| tensor.meta.num_elements().div_ceil(block_len));
        let tensor = tensor.unwrap_or(first).clone();
        let vector_size = vector_size(&client, &[tensor.meta.num_elements()], &[dtype]);
        (tensor.into_tensor_arg(), vector_size, blocks)
    });
    let ends = arguments.each_ref().map(|argument| argument.2);
    let [a, b, c, d, e, f, g, h] = arguments;
    let Planes { lanes, count, dim } = planes(&client, ends[TENSORS - 1]);
    let partials = new_beside(first, Shape::new([ends[TENSORS - 1], 2]), DType::F32);
    let at = address(&tensors.iter().collect::<Vec<_>>());
    // SAFETY: planes look whether their block is one of `partials` before they read or write; a block lies in one
    // tensor, and units stop at that tensor's length.
    unsafe {
        square_sum_kernel::launch_unchecked(
            &client,
            count,
            dim,
            at,
            a.1,
            b.1,
            c.1,
            d.1,
            e.1,
            f.1,
            g.1,
            h.1,
            a.0,
            b.0,
            c.0,
            d.0,
            e.0,
            f.0,
            g.0,
            h.0,
            partials.clone().into_tensor_arg(),
            BlockEndsLaunch::new(
                ends[0], ends[1], ends[2], ends[3], ends[4], ends[5], ends[6], ends[7],
            ),
            block_len,
            lanes,
            dtype_to_storage_type(dtype),
        );
    }
    partials
}
