//! Copies that change the element type and multiply: buckets are packed and unpacked with them.

use super::vectors::{VectorLoop, vectorised_loop};
use super::{KernelFloat, WideFloat, new_array};

/// Elements that are converted at once where a type has instructions of its own: they stay in the
/// first-level cache.
const BLOCK: usize = 256;

/// `to = from * scale`: in the wide type of `A`, rounded once to `B`; from 64 bits to 16 by way of 32.
///
/// # Panics
/// If lengths differ.
pub fn scaled_copy<A: KernelFloat, B: KernelFloat>(from: &[A], scale: f64, to: &mut [B]) {
    each::<A, B, false>(from, scale, to);
}

/// `to = from`, bit by bit: in blocks, which is faster than the C library's way of copying megabytes at once on
/// processors where that is one instruction.
///
/// # Panics
/// If lengths differ.
pub fn plain_copy<E: Copy>(from: &[E], to: &mut [E]) {
    assert_eq!(from.len(), to.len(), "arrays of one length");
    let block = (4096 / size_of::<E>().max(1)).max(1);
    for (from, to) in from.chunks(block).zip(to.chunks_mut(block)) {
        to.copy_from_slice(from);
    }
}

/// `to = to + from * scale`: the product in the wide type of `A`, the sum in that of `B`.
///
/// # Panics
/// If lengths differ.
pub fn scaled_add<A: KernelFloat, B: KernelFloat>(from: &[A], scale: f64, to: &mut [B]) {
    each::<A, B, true>(from, scale, to);
}

/// `from * scale` in new memory, which is written once; see [`scaled_copy`].
pub fn scaled_vec<A: KernelFloat, B: KernelFloat>(from: &[A], scale: f64) -> Vec<B> {
    if A::HAS_INSTRUCTIONS || B::HAS_INSTRUCTIONS {
        let mut to = new_array(from.len());
        to.resize(from.len(), B::narrow(B::Wide::from_f64(0.0)));
        scaled_copy(from, scale, &mut to);
        return to;
    }
    let mut to = new_array(from.len());
    let scale = A::Wide::from_f64(scale);
    vectorised_loop(Fill {
        from,
        scale,
        to: &mut to,
    });
    to
}

struct Fill<'a, A: KernelFloat, B> {
    from: &'a [A],
    scale: A::Wide,
    to: &'a mut Vec<B>,
}

impl<A: KernelFloat, B: KernelFloat> VectorLoop for Fill<'_, A, B> {
    type Output = ();

    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let values = self.from.iter().map(|from| {
            let value = (from.widen() * self.scale).to_f64();
            B::narrow(B::Wide::from_f64(value))
        });
        self.to.extend(values);
    }
}

/// One of both.
fn each<A: KernelFloat, B: KernelFloat, const ADD: bool>(from: &[A], scale: f64, to: &mut [B]) {
    assert_eq!(from.len(), to.len(), "arrays of one length");
    let scale = A::Wide::from_f64(scale);
    if !A::HAS_INSTRUCTIONS && !B::HAS_INSTRUCTIONS {
        return vectorised_loop(Each::<A, B, ADD> { from, scale, to });
    }
    let mut wide = [A::Wide::from_f64(0.0); BLOCK];
    let mut results = [B::Wide::from_f64(0.0); BLOCK];
    for (from, to) in from.chunks(BLOCK).zip(to.chunks_mut(BLOCK)) {
        let (wide, results) = (&mut wide[..from.len()], &mut results[..from.len()]);
        let from = match A::as_wide(from) {
            Some(from) => from,
            None => {
                A::widen_all(from, wide);
                &*wide
            }
        };
        if let Some(to) = B::as_wide_mut(to) {
            vectorised_loop(Each::<A::Wide, B::Wide, ADD> { from, scale, to });
            continue;
        }
        if ADD {
            B::widen_all(to, results);
        }
        vectorised_loop(Each::<A::Wide, B::Wide, ADD> {
            from,
            scale,
            to: &mut *results,
        });
        B::narrow_all(results, to);
    }
}

struct Each<'a, A: KernelFloat, B, const ADD: bool> {
    from: &'a [A],
    scale: A::Wide,
    to: &'a mut [B],
}

impl<A: KernelFloat, B: KernelFloat, const ADD: bool> VectorLoop for Each<'_, A, B, ADD> {
    type Output = ();

    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        for (to, from) in self.to.iter_mut().zip(self.from) {
            let value = B::Wide::from_f64((from.widen() * self.scale).to_f64());
            *to = B::narrow(match ADD {
                true => to.widen() + value,
                false => value,
            });
        }
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
        let bits = |values: &[B]| -> Vec<u64> {
            values
                .iter()
                .map(|x| x.widen().to_f64().to_bits())
                .collect()
        };
        assert_eq!(bits(&scaled_vec::<A, B>(&from, scale)), bits(&to));
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
