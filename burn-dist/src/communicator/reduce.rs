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
    let n = parts.len();
    macro_rules! float {
        ($element:ty, $wide:ty, $load:expr, $store:expr) => {
            match op {
                ReduceOp::Sum => {
                    fold::<$element, $wide>(own, parts, out, $load, |a, b| a + b, $store)
                }
                ReduceOp::Mean => {
                    let n = n as $wide;
                    fold::<$element, $wide>(own, parts, out, $load, |a, b| a + b, |x| $store(x / n))
                }
                ReduceOp::Product => {
                    fold::<$element, $wide>(own, parts, out, $load, |a, b| a * b, $store)
                }
                ReduceOp::Max => fold::<$element, $wide>(
                    own,
                    parts,
                    out,
                    $load,
                    |a, b| if a >= b || a.is_nan() { a } else { b },
                    $store,
                ),
                ReduceOp::Min => fold::<$element, $wide>(
                    own,
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
                ReduceOp::Sum => fold::<$element, $element>(
                    own,
                    parts,
                    out,
                    |x| x,
                    <$element>::wrapping_add,
                    |x| x,
                ),
                ReduceOp::Product => fold::<$element, $element>(
                    own,
                    parts,
                    out,
                    |x| x,
                    <$element>::wrapping_mul,
                    |x| x,
                ),
                ReduceOp::Max => {
                    fold::<$element, $element>(own, parts, out, |x| x, Ord::max, |x| x)
                }
                ReduceOp::Min => {
                    fold::<$element, $element>(own, parts, out, |x| x, Ord::min, |x| x)
                }
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

/// `store(combine(combine(load(p0), load(p1)), ...))` for every element.
fn fold<T: Pod, A: Copy + Zeroable>(
    own: usize,
    parts: &[&[u8]],
    out: &mut [u8],
    load: impl Fn(T) -> A + Copy,
    combine: impl Fn(A, A) -> A + Copy,
    store: impl Fn(A) -> T + Copy,
) {
    let aligned: Option<Vec<&[T]>> = parts
        .iter()
        .enumerate()
        .map(|(i, part)| match i == own {
            true => Some(&[] as &[T]),
            false => bytemuck::try_cast_slice(part).ok(),
        })
        .collect();
    match (aligned, bytemuck::try_cast_slice_mut::<u8, T>(out)) {
        (Some(parts), Ok(out)) => fold_blocks(own, &parts, out, load, combine, store),
        // Memory of another allocator may be unaligned: work on copies.
        _ => {
            let copies: Vec<Vec<T>> = parts
                .iter()
                .enumerate()
                .map(|(i, part)| match i == own {
                    true => Vec::new(),
                    false => bytemuck::pod_collect_to_vec(part),
                })
                .collect();
            let parts: Vec<&[T]> = copies.iter().map(Vec::as_slice).collect();
            let mut result: Vec<T> = bytemuck::pod_collect_to_vec(out);
            fold_blocks(own, &parts, &mut result, load, combine, store);
            out.copy_from_slice(bytemuck::cast_slice(&result));
        }
    }
}

fn fold_blocks<T: Pod, A: Copy + Zeroable>(
    own: usize,
    parts: &[&[T]],
    out: &mut [T],
    load: impl Fn(T) -> A + Copy,
    combine: impl Fn(A, A) -> A + Copy,
    store: impl Fn(A) -> T + Copy,
) {
    let mut block = [A::zeroed(); BLOCK];
    for (number, out) in out.chunks_mut(BLOCK).enumerate() {
        let range = number * BLOCK..number * BLOCK + out.len();
        let block = &mut block[..out.len()];
        for (i, part) in parts.iter().enumerate() {
            let source: &[T] = if i == own { out } else { &part[range.clone()] };
            if i == 0 {
                for (sum, &value) in block.iter_mut().zip(source) {
                    *sum = load(value);
                }
            } else {
                for (sum, &value) in block.iter_mut().zip(source) {
                    *sum = combine(*sum, load(value));
                }
            }
        }
        for (value, &sum) in out.iter_mut().zip(block.iter()) {
            *value = store(sum);
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
