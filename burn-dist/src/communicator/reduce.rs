//! Element-wise reduction of the members' arrays, in rank order.

use burn::tensor::{DType, bf16, f16};
use bytemuck::{Pod, Zeroable};

use super::ReduceOp;

/// Elements of one accumulator block: it stays in the first-level cache.
const BLOCK: usize = 1024;

/// Reduces `parts` in their order into `out`.
///
/// `out` holds part number `own` when called and the result afterwards; `parts[own]` is not looked
/// at. 16-bit floats are accumulated in f32 and rounded once; the mean divides once, after the sum;
/// integers wrap; a NaN wins every maximum and minimum.
///
/// # Panics
/// If lengths differ or `op` is not defined for `dtype`: callers check with
/// [`ReduceOp::refusal`].
pub fn reduce_in_rank_order(
    dtype: DType,
    op: ReduceOp,
    own: usize,
    parts: &[&[u8]],
    out: &mut [u8],
) {
    reduce_parts(dtype, op, parts.len(), own, |i| parts[i], out);
}

/// As [`reduce_in_rank_order`], of `n` parts that a function gives; it is not asked for part `own`.
/// Nothing is allocated, and parts need not be aligned.
pub(super) fn reduce_parts<'p>(
    dtype: DType,
    op: ReduceOp,
    n: usize,
    own: usize,
    part: impl Fn(usize) -> &'p [u8] + Copy,
    out: &mut [u8],
) {
    let parts = Parts { n, own, part };
    macro_rules! float {
        ($element:ty, $wide:ty, $load:expr, $store:expr) => {
            match op {
                ReduceOp::Sum => {
                    fold::<$element, $wide, _>(parts, out, $load, |a, b| a + b, $store)
                }
                ReduceOp::Mean => {
                    let n = n as $wide;
                    fold::<$element, $wide, _>(parts, out, $load, |a, b| a + b, |x| $store(x / n))
                }
                ReduceOp::Product => {
                    fold::<$element, $wide, _>(parts, out, $load, |a, b| a * b, $store)
                }
                ReduceOp::Max => fold::<$element, $wide, _>(
                    parts,
                    out,
                    $load,
                    |a, b| if a >= b || a.is_nan() { a } else { b },
                    $store,
                ),
                ReduceOp::Min => fold::<$element, $wide, _>(
                    parts,
                    out,
                    $load,
                    |a, b| if a <= b || a.is_nan() { a } else { b },
                    $store,
                ),
            }
        };
    }
    macro_rules! integer {
        ($element:ty) => {
            match op {
                ReduceOp::Sum => fold::<$element, $element, _>(
                    parts,
                    out,
                    |x| x,
                    <$element>::wrapping_add,
                    |x| x,
                ),
                ReduceOp::Product => fold::<$element, $element, _>(
                    parts,
                    out,
                    |x| x,
                    <$element>::wrapping_mul,
                    |x| x,
                ),
                ReduceOp::Max => fold::<$element, $element, _>(parts, out, |x| x, Ord::max, |x| x),
                ReduceOp::Min => fold::<$element, $element, _>(parts, out, |x| x, Ord::min, |x| x),
                ReduceOp::Mean => unreachable!("invariant: the mean of integers is refused"),
            }
        };
    }
    match dtype {
        DType::F64 => float!(f64, f64, |x: f64| x, |x: f64| x),
        DType::F32 | DType::Flex32 => float!(f32, f32, |x: f32| x, |x: f32| x),
        DType::F16 => float!(f16, f32, f16::to_f32, f16::from_f32),
        DType::BF16 => float!(bf16, f32, bf16::to_f32, bf16::from_f32),
        DType::I64 => integer!(i64),
        DType::I32 => integer!(i32),
        DType::I16 => integer!(i16),
        DType::I8 => integer!(i8),
        DType::U64 => integer!(u64),
        DType::U32 => integer!(u32),
        DType::U16 => integer!(u16),
        DType::U8 | DType::Bool(_) => integer!(u8),
        other => unreachable!("invariant: {other:?} is refused before it comes here"),
    }
}

/// The element type in which partial sums of `dtype` travel around a ring.
pub(super) fn partial_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// 16-bit floats as f32; others unchanged.
pub(super) fn widen(dtype: DType, bytes: &[u8]) -> Vec<u8> {
    fn convert<T: Pod>(bytes: &[u8], to: impl Fn(T) -> f32) -> Vec<u8> {
        let mut wide = Vec::with_capacity(bytes.len() * 2);
        for element in bytes.chunks_exact(size_of::<T>()) {
            wide.extend_from_slice(&to(bytemuck::pod_read_unaligned(element)).to_ne_bytes());
        }
        wide
    }
    match dtype {
        DType::F16 => convert(bytes, f16::to_f32),
        DType::BF16 => convert(bytes, bf16::to_f32),
        _ => bytes.to_vec(),
    }
}

/// Ends a reduction whose partial results travelled as [`partial_dtype`]: divides a mean and rounds.
pub(super) fn finish_partial(
    dtype: DType,
    op: ReduceOp,
    n: usize,
    partial: &mut [u8],
    out: &mut [u8],
) {
    if op == ReduceOp::Mean {
        match partial_dtype(dtype) {
            DType::F64 => each::<f64>(partial, |x| x / n as f64),
            _ => each::<f32>(partial, |x| x / n as f32),
        }
    }
    fn narrow<T: Pod>(partial: &[u8], out: &mut [u8], to: impl Fn(f32) -> T) {
        for (wide, element) in partial
            .chunks_exact(4)
            .zip(out.chunks_exact_mut(size_of::<T>()))
        {
            let wide: f32 = bytemuck::pod_read_unaligned(wide);
            element.copy_from_slice(bytemuck::bytes_of(&to(wide)));
        }
    }
    match dtype {
        DType::F16 => narrow(partial, out, f16::from_f32),
        DType::BF16 => narrow(partial, out, bf16::from_f32),
        _ => out.copy_from_slice(partial),
    }
}

fn each<T: Pod>(bytes: &mut [u8], f: impl Fn(T) -> T) {
    for element in bytes.chunks_exact_mut(size_of::<T>()) {
        let value = f(bytemuck::pod_read_unaligned(element));
        element.copy_from_slice(bytemuck::bytes_of(&value));
    }
}

/// Where the parts of a reduction are.
#[derive(Clone, Copy)]
struct Parts<F> {
    n: usize,
    own: usize,
    part: F,
}

/// `store(combine(combine(load(p0), load(p1)), ...))` for every element, block by block: the first two
/// parts in one pass, the last one together with the store.
fn fold<'p, T: Pod, A: Copy + Zeroable, F: Fn(usize) -> &'p [u8]>(
    parts: Parts<F>,
    out: &mut [u8],
    load: impl Fn(T) -> A + Copy,
    combine: impl Fn(A, A) -> A + Copy,
    store: impl Fn(A) -> T + Copy,
) {
    let size = size_of::<T>();
    let read = move |bytes: &[u8]| load(bytemuck::pod_read_unaligned(bytes));
    let last = parts.n - 1;
    let mut sums = [A::zeroed(); BLOCK];
    // At most eight bytes per element.
    let mut own_block = [0u8; BLOCK * 8];
    for (number, out) in out.chunks_mut(BLOCK * size).enumerate() {
        let range = number * BLOCK * size..number * BLOCK * size + out.len();
        let own_block = &mut own_block[..out.len()];
        own_block.copy_from_slice(out);
        let own_block = &*own_block;
        let part = |i: usize| match i == parts.own {
            true => own_block,
            false => &(parts.part)(i)[range.clone()],
        };
        let elements = |i: usize| part(i).chunks_exact(size);
        let results = out.chunks_exact_mut(size);
        let put = |target: &mut [u8], sum: A| {
            target.copy_from_slice(bytemuck::bytes_of(&store(sum)));
        };
        match last {
            0 => {
                for (target, a) in results.zip(elements(0)) {
                    put(target, read(a));
                }
            }
            1 => {
                for ((target, a), b) in results.zip(elements(0)).zip(elements(1)) {
                    put(target, combine(read(a), read(b)));
                }
            }
            _ => {
                for ((sum, a), b) in sums.iter_mut().zip(elements(0)).zip(elements(1)) {
                    *sum = combine(read(a), read(b));
                }
                for i in 2..last {
                    for (sum, a) in sums.iter_mut().zip(elements(i)) {
                        *sum = combine(*sum, read(a));
                    }
                }
                for ((target, sum), a) in results.zip(sums.iter()).zip(elements(last)) {
                    put(target, combine(*sum, read(a)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Element;

    fn reduce<T: Pod + Element>(op: ReduceOp, parts: &[Vec<T>]) -> Vec<T> {
        let own = parts.len() / 2;
        let bytes: Vec<&[u8]> = parts.iter().map(|p| bytemuck::cast_slice(p)).collect();
        let mut out = parts[own].clone();
        let target = bytemuck::cast_slice_mut(&mut out);
        reduce_in_rank_order(T::dtype(), op, own, &bytes, target);
        out
    }

    #[test]
    fn sixteen_bit_floats_are_summed_in_f32() {
        let mut parts = vec![vec![bf16::from_f32(1.0)]];
        parts.extend((0..512).map(|_| vec![bf16::from_f32(f32::powi(2.0, -9))]));
        assert_eq!(reduce(ReduceOp::Sum, &parts), [bf16::from_f32(2.0)]);
    }

    #[test]
    fn integers_add_and_wrap() {
        assert_eq!(reduce(ReduceOp::Sum, &[vec![3i32], vec![4]]), [7]);
        assert_eq!(
            reduce(ReduceOp::Sum, &[vec![i32::MAX], vec![1]]),
            [i32::MIN]
        );
        assert_eq!(reduce(ReduceOp::Product, &[vec![3u8], vec![100]]), [44]);
        assert_eq!(
            reduce(ReduceOp::Min, &[vec![3i64], vec![-4], vec![5]]),
            [-4]
        );
    }

    #[test]
    fn the_order_is_rank_order() {
        // (1e8 + 1) - 1e8 is 0 in f32; 1e8 - 1e8 + 1 would be 1.
        let parts = [vec![1e8f32], vec![1.0], vec![-1e8]];
        assert_eq!(reduce(ReduceOp::Sum, &parts), [0.0]);
        let parts = [vec![1e8f32], vec![-1e8], vec![1.0]];
        assert_eq!(reduce(ReduceOp::Sum, &parts), [1.0]);
    }

    #[test]
    fn a_nan_wins() {
        for op in [ReduceOp::Max, ReduceOp::Min] {
            for parts in [
                [1.0, f32::NAN, 2.0],
                [f32::NAN, 1.0, 2.0],
                [1.0, 2.0, f32::NAN],
            ] {
                let parts: Vec<Vec<f32>> = parts.iter().map(|&x| vec![x]).collect();
                assert!(reduce(op, &parts)[0].is_nan(), "{op:?} {parts:?}");
            }
        }
    }

    #[test]
    fn unaligned_memory_and_odd_lengths_give_the_same() {
        let parts: Vec<Vec<f32>> = (0..3)
            .map(|r| {
                (0..BLOCK * 2 + 7)
                    .map(|i| (i * (r + 1)) as f32 * 0.1)
                    .collect()
            })
            .collect();
        let expected = reduce(ReduceOp::Mean, &parts);
        let shifted: Vec<Vec<u8>> = parts
            .iter()
            .map(|p| [&[0u8], bytemuck::cast_slice(p)].concat())
            .collect();
        let slices: Vec<&[u8]> = shifted.iter().map(|p| &p[1..]).collect();
        let mut out = shifted[1].clone();
        reduce_in_rank_order(DType::F32, ReduceOp::Mean, 1, &slices, &mut out[1..]);
        assert_eq!(out[1..], *bytemuck::cast_slice::<f32, u8>(&expected));
    }
}
