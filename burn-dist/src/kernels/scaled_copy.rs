//! Copies that change the element type and multiply: buckets are packed and unpacked with them.

use super::vectors::vectorised;
use super::{KernelFloat, WideFloat};

/// Elements that are converted at once where a type has instructions of its own: they stay in the
/// first-level cache.
const BLOCK: usize = 1024;

/// `to = from * scale`: in the wide type of `A`, rounded once to `B`; from 64 bits to 16 by way of 32.
///
/// # Panics
/// If lengths differ.
pub fn scaled_copy<A: KernelFloat, B: KernelFloat>(from: &[A], scale: f64, to: &mut [B]) {
    each(from, scale, to, |_, value| value);
}

/// `to = to + from * scale`: the product in the wide type of `A`, the sum in that of `B`.
///
/// # Panics
/// If lengths differ.
pub fn scaled_add<A: KernelFloat, B: KernelFloat>(from: &[A], scale: f64, to: &mut [B]) {
    each(from, scale, to, |sum, value| sum.widen() + value);
}

/// `to = combine(to, from * scale)`.
#[inline(always)]
fn each<A: KernelFloat, B: KernelFloat>(
    from: &[A],
    scale: f64,
    to: &mut [B],
    combine: impl Fn(&B, B::Wide) -> B::Wide,
) {
    assert_eq!(from.len(), to.len(), "arrays of one length");
    let scale = A::Wide::from_f64(scale);
    let convert = |value: A::Wide| B::Wide::from_f64((value * scale).to_f64());
    if !A::HAS_INSTRUCTIONS && !B::HAS_INSTRUCTIONS {
        vectorised(|| {
            for (to, from) in to.iter_mut().zip(from) {
                *to = B::narrow(combine(to, convert(from.widen())));
            }
        });
        return;
    }
    let mut wide = [A::Wide::from_f64(0.0); BLOCK];
    let mut results = [B::Wide::from_f64(0.0); BLOCK];
    for (from, to) in from.chunks(BLOCK).zip(to.chunks_mut(BLOCK)) {
        let (wide, results) = (&mut wide[..from.len()], &mut results[..from.len()]);
        A::widen_all(from, wide);
        vectorised(|| {
            for ((result, value), to) in results.iter_mut().zip(wide).zip(&*to) {
                *result = combine(to, convert(*value));
            }
        });
        B::narrow_all(results, to);
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use proptest::prelude::*;

    use super::*;

    /// The same, number by number, with the types' own conversions.
    fn plain<A: KernelFloat, B: KernelFloat>(from: &[A], scale: f64) -> Vec<f64> {
        let scale = A::Wide::from_f64(scale);
        let scaled = from.iter().map(|a| (a.widen() * scale).to_f64());
        let rounded = scaled.map(|value| B::narrow(B::Wide::from_f64(value)).widen().to_f64());
        rounded.collect()
    }

    fn check<A: KernelFloat, B: KernelFloat>(values: &[f32], scale: f64) {
        let from: Vec<A> = values
            .iter()
            .map(|&x| A::narrow(A::Wide::from_f64(x.into())))
            .collect();
        let mut to = vec![B::narrow(B::Wide::from_f64(1.0)); from.len()];
        scaled_copy(&from, scale, &mut to);
        let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        let right = plain::<A, B>(&from, scale);
        for (got, right) in to.iter().zip(&right) {
            assert!(
                same(got.widen().to_f64(), *right),
                "{scale}: {} {right}",
                got.widen().to_f64()
            );
        }
        let mut sums = vec![B::narrow(B::Wide::from_f64(0.5)); from.len()];
        scaled_add(&from, scale, &mut sums);
        let scale = A::Wide::from_f64(scale);
        for (got, a) in sums.iter().zip(&from) {
            let value = B::Wide::from_f64((a.widen() * scale).to_f64());
            let right = B::narrow(B::Wide::from_f64(0.5) + value).widen().to_f64();
            assert!(same(got.widen().to_f64(), right));
        }
    }

    fn check_all<A: KernelFloat>(values: &[f32], scale: f64) {
        check::<A, f32>(values, scale);
        check::<A, f64>(values, scale);
        check::<A, f16>(values, scale);
        check::<A, bf16>(values, scale);
    }

    proptest! {
        #[test]
        fn all_types_odd_lengths_and_empty(
            bits in prop::collection::vec(any::<u32>(), 0..2500),
            scale in prop_oneof![Just(1.0), Just(0.5), -3.0..3.0],
        ) {
            let values: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
            check_all::<f32>(&values, scale);
            check_all::<f64>(&values, scale);
            check_all::<f16>(&values, scale);
            check_all::<bf16>(&values, scale);
        }
    }
}
