//! [`NormSum`]: a sum of squares that does not depend on the order of its terms. Pure.

use burn::tensor::DType;
use burn_dist::communicator::{HostBuffer, ReduceOp};
use burn_dist::{ProcessGroup, Result};

/// The exact sum of squares of floats.
///
/// Squares of significands are integers; they are added up in integers, one sum per exponent, and only
/// [`norm`](Self::norm) rounds. So the same elements give the same bits however they are cut, ordered and
/// spread over ranks, which no fixed grouping of rounded sums does for every layout.
///
/// (Binned sums as in J. Demmel and H. D. Nguyen, "Parallel reproducible summation", 2015, here with whole
/// significands, so that no bin loses bits.)
#[derive(Debug, Clone)]
pub struct NormSum {
    /// Of 16 and 32 bits, by biased exponent of an f32.
    narrow: Vec<u128>,
    /// Of 64 bits: low and high words of the squares, by biased exponent; empty until there is one.
    wide: Vec<[u128; 2]>,
    not_finite: u64,
}

const NARROW: usize = 255;
const WIDE: usize = 2047;
/// Squares of 24-bit significands that a 64-bit sum takes.
const BLOCK: usize = 1 << 16;

impl Default for NormSum {
    fn default() -> Self {
        Self {
            narrow: vec![0; NARROW],
            wide: Vec::new(),
            not_finite: 0,
        }
    }
}

impl NormSum {
    /// Of nothing: 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the squares of an array of floats.
    ///
    /// # Panics
    /// If the array holds something else.
    pub fn add(&mut self, values: &HostBuffer) {
        let bytes = values.bytes();
        match values.dtype() {
            DType::F32 | DType::Flex32 => self.add_f32(bytemuck::cast_slice(bytes)),
            DType::F64 => self.add_f64(bytemuck::cast_slice(bytes)),
            DType::F16 => {
                let values: &[half::f16] = bytemuck::cast_slice(bytes);
                self.add_f32(&values.iter().map(|x| x.to_f32()).collect::<Vec<_>>());
            }
            DType::BF16 => {
                let values: &[half::bf16] = bytemuck::cast_slice(bytes);
                self.add_f32(&values.iter().map(|x| x.to_f32()).collect::<Vec<_>>());
            }
            other => unreachable!("invariant: gradients are floats, not {other:?}"),
        }
    }

    fn add_f32(&mut self, values: &[f32]) {
        // Neighbours have like exponents; four tables keep their sums from waiting for each other.
        const LANES: usize = 4;
        for block in values.chunks(BLOCK) {
            let mut bins = [[0u64; 256]; LANES];
            let square = |bins: &mut [u64; 256], value: f32| {
                let bits = value.to_bits();
                let exponent = (bits >> 23) & 0xff;
                let significand = (bits & 0x7f_ffff) | (u32::from(exponent != 0) << 23);
                let significand = u64::from(significand);
                // Infinities and NaN are counted in the last bin.
                bins[exponent as usize] += match exponent {
                    255 => 1,
                    _ => significand * significand,
                };
            };
            let lanes = block.chunks_exact(LANES);
            let rest = lanes.remainder();
            for lane in lanes {
                for (bins, &value) in bins.iter_mut().zip(lane) {
                    square(bins, value);
                }
            }
            rest.iter().for_each(|&value| square(&mut bins[0], value));
            for bins in &bins {
                for (sum, &bin) in self.narrow.iter_mut().zip(bins) {
                    *sum += u128::from(bin);
                }
                self.not_finite += bins[NARROW];
            }
        }
    }

    fn add_f64(&mut self, values: &[f64]) {
        self.wide.resize(WIDE, [0; 2]);
        for value in values {
            let bits = value.to_bits();
            let exponent = ((bits >> 52) & 0x7ff) as usize;
            if exponent == WIDE {
                self.not_finite += 1;
                continue;
            }
            let significand = (bits & ((1 << 52) - 1)) | (u64::from(exponent != 0) << 52);
            let square = u128::from(significand) * u128::from(significand);
            self.wide[exponent][0] += square & u128::from(u64::MAX);
            self.wide[exponent][1] += square >> 64;
        }
    }

    /// Infinities and NaNs among the terms.
    pub fn num_not_finite(&self) -> u64 {
        self.not_finite
    }

    /// The sum over all ranks of a group. Collective; `wide` tells, alike on all ranks, whether any of
    /// them may have elements of 64 bits.
    ///
    /// # Errors
    /// What the group met.
    pub fn all_reduce(mut self, group: &ProcessGroup, wide: bool) -> Result<Self> {
        if wide {
            self.wide.resize(WIDE, [0; 2]);
        }
        // In words of 32 bits, whose sums over ranks fit 64.
        let words = |&bin: &u128| (0..4).map(move |word| (bin >> (32 * word)) as u64 & 0xffff_ffff);
        let bins = self.narrow.iter().chain(self.wide.iter().flatten());
        let mut values: Vec<u64> = bins.flat_map(words).collect();
        values.push(self.not_finite);
        let values = group.all_reduce_values(values, ReduceOp::Sum)?;
        let (bins, not_finite) = values.split_at(values.len() - 1);
        let bin = |words: &[u64]| {
            let words = words.iter().rev();
            words.fold(0u128, |sum, &word| (sum << 32) + u128::from(word))
        };
        let mut bins = bins.chunks(4).map(bin);
        self.narrow = bins.by_ref().take(NARROW).collect();
        for pair in &mut self.wide {
            for word in pair {
                *word = bins.next().expect("invariant: as many as were sent");
            }
        }
        self.not_finite = not_finite[0];
        Ok(self)
    }

    /// The square root of the sum; infinite if a term was not finite.
    pub fn norm(&self) -> f64 {
        if self.not_finite > 0 {
            return f64::INFINITY;
        }
        let narrow = self.narrow.iter().map(|&bin| bin as f64);
        let narrow = root(narrow, 127 + 23);
        if self.wide.is_empty() {
            return narrow;
        }
        let wide = self.wide.iter();
        let wide = wide.map(|[low, high]| *high as f64 * 2f64.powi(64) + *low as f64);
        narrow.hypot(root(wide, 1023 + 52))
    }
}

/// The root of sums of squared significands by biased exponent; `one` is the exponent of a significand
/// of 1. Taken relative to the largest, so that nothing overflows.
fn root(bins: impl DoubleEndedIterator<Item = f64> + ExactSizeIterator, one: i32) -> f64 {
    // Subnormal numbers have the exponent of the smallest normal ones.
    let exponent = |bin: usize| (bin.max(1)) as i32;
    let bins: Vec<(i32, f64)> = bins
        .enumerate()
        .filter(|(_, sum)| *sum > 0.0)
        .map(|(bin, sum)| (exponent(bin), sum))
        .collect();
    let Some(&(largest, _)) = bins.last() else {
        return 0.0;
    };
    let scaled = bins.iter().map(|(exponent, sum)| {
        // Below, a term is less than the last bit of the sum.
        let shift = (2 * (exponent - largest)).max(-1022);
        sum * 2f64.powi(shift)
    });
    let root = scaled.sum::<f64>().sqrt();
    // In two steps: either may leave the range of f64 alone.
    let shift = largest - one;
    root * 2f64.powi(shift / 2) * 2f64.powi(shift - shift / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[f32]) -> NormSum {
        let mut sum = NormSum::new();
        sum.add(&HostBuffer::from_values(values.to_vec()));
        sum
    }

    fn of_wide(values: &[f64]) -> f64 {
        let mut sum = NormSum::new();
        sum.add(&HostBuffer::from_values(values.to_vec()));
        sum.norm()
    }

    #[test]
    fn known_norms() {
        assert_eq!(of(&[]).norm(), 0.0);
        assert_eq!(of(&[3.0, -4.0]).norm(), 5.0);
        assert_eq!(of(&[0.0, -0.0, 1.0]).norm(), 1.0);
        let smallest = f32::from_bits(1);
        assert_eq!(of(&[smallest]).norm(), f64::from(smallest));
        assert_eq!(of(&[f32::MAX]).norm(), f64::from(f32::MAX));
        assert_eq!(of(&[f32::MAX; 4]).norm(), 2.0 * f64::from(f32::MAX));
        assert_eq!(of_wide(&[3.0, -4.0]), 5.0);
        assert_eq!(of_wide(&[f64::MAX]), f64::MAX);
        assert_eq!(of_wide(&[f64::from_bits(1)]), f64::from_bits(1));
        assert!((of_wide(&[3e200, 4e200]) - 5e200).abs() <= 1e185);
        // More than one block, and sums far beyond what an f32 could hold.
        let many = vec![1.0f32; 200_001];
        assert_eq!(of(&many).norm(), 200_001f64.sqrt());
    }

    #[test]
    fn what_is_not_finite_is_counted() {
        let sum = of(&[1.0, f32::INFINITY, f32::NAN]);
        assert_eq!((sum.num_not_finite(), sum.norm()), (2, f64::INFINITY));
        assert_eq!(of_wide(&[f64::NAN]), f64::INFINITY);
    }

    #[test]
    fn sixteen_bits_as_they_are() {
        let mut sum = NormSum::new();
        let values = [half::bf16::from_f32(3.0), half::bf16::from_f32(-4.0)];
        sum.add(&HostBuffer::from_values(values.to_vec()));
        let values = [half::f16::from_f32(12.0)];
        sum.add(&HostBuffer::from_values(values.to_vec()));
        assert_eq!(sum.norm(), 13.0);
    }

    proptest! {
        #[test]
        fn the_order_and_the_cuts_do_not_matter(
            bits in proptest::collection::vec(any::<u32>(), 0..300),
            cut in 0usize..300,
        ) {
            let mut values: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
            values.retain(|value| value.is_finite());
            let whole = of(&values).norm();
            let (one, other) = values.split_at(cut.min(values.len()));
            let mut parts = NormSum::new();
            for part in [other, one] {
                let part = part.iter().rev().copied().collect();
                parts.add(&HostBuffer::from_values::<f32>(part));
            }
            prop_assert_eq!(parts.norm().to_bits(), whole.to_bits());
            let plain = values.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
            prop_assert!((whole - plain).abs() <= 1e-12 * plain);
        }
    }
}
