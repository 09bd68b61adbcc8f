//! [`rank_sum`]: arrays of several ranks added up.

use super::vectors::{VectorLoop, vectorised_loop};
use super::{KernelFloat, WideFloat, new_array};

/// Elements of one block of sums: they stay in the first-level cache.
const BLOCK: usize = 1024;

/// The sum, or mean, of `ranks` arrays that lie one after the other, element by element in rank order: in the
/// wide type, divided once, rounded once. In new memory, which is written once.
///
/// # Panics
/// If there are no ranks, or the arrays are not of one length.
pub fn rank_sum<E: KernelFloat>(parts: &[E], ranks: usize, is_mean: bool) -> Vec<E> {
    assert!(
        ranks > 0 && parts.len().is_multiple_of(ranks),
        "arrays of one length"
    );
    let len = parts.len() / ranks;
    let divisor = is_mean.then(|| E::Wide::from_f64(ranks as f64));
    let mut sums = [E::Wide::from_f64(0.0); BLOCK];
    let mut wide = sums;
    let mut narrow = [E::narrow(E::Wide::from_f64(0.0)); BLOCK];
    let mut result = new_array(len);
    for start in (0..len).step_by(BLOCK) {
        let size = BLOCK.min(len - start);
        let (sums, wide) = (&mut sums[..size], &mut wide[..size]);
        for rank in 0..ranks {
            let part = &parts[rank * len + start..][..size];
            match (rank, E::HAS_INSTRUCTIONS) {
                (0, true) => E::widen_all(part, sums),
                (0, false) => vectorised_loop(Start { part, sums }),
                (_, true) => {
                    E::widen_all(part, wide);
                    vectorised_loop(Add::<E::Wide> { part: wide, sums });
                }
                (_, false) => vectorised_loop(Add { part, sums }),
            }
        }
        if let Some(divisor) = divisor {
            sums.iter_mut().for_each(|sum| *sum = *sum / divisor);
        }
        match E::HAS_INSTRUCTIONS {
            true => {
                let narrow = &mut narrow[..size];
                E::narrow_all(sums, narrow);
                result.extend_from_slice(narrow);
            }
            false => result.extend(sums.iter().map(|&sum| E::narrow(sum))),
        }
    }
    result
}

struct Start<'a, E: KernelFloat> {
    part: &'a [E],
    sums: &'a mut [E::Wide],
}

impl<E: KernelFloat> VectorLoop for Start<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        for (sum, element) in self.sums.iter_mut().zip(self.part) {
            *sum = element.widen();
        }
    }
}

struct Add<'a, E: KernelFloat> {
    part: &'a [E],
    sums: &'a mut [E::Wide],
}

impl<E: KernelFloat> VectorLoop for Add<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        for (sum, element) in self.sums.iter_mut().zip(self.part) {
            *sum = *sum + element.widen();
        }
    }
}
