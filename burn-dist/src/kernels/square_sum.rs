//! [`SquareSum`]: a sum of squares that does not depend on the order of its terms.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::square_lanes::{BLOCK, Lanes, SIGN};
use super::vectors::vectorised;
use super::{ExactSum, f16_arrays};

/// The exact sum of squares of floats: the same elements give the same bits however they are cut, ordered
/// and spread over ranks, which no grouping of rounded sums does for every layout.
///
/// Most elements take the fast way: a square, exact in 64 bits, is added to a large number, which rounds it to a
/// multiple of some unit, and what was rounded off is added to another sum. Both sums are exact as long as
/// elements lie within a window of about 2^20, which each block is tested for; what lies outside is added in
/// integers. (Error-free extraction: S. M. Rump, T. Ogita and S. Oishi, "Accurate floating-point summation",
/// 2008, algorithm 3.2.)
#[derive(Debug, Clone, Default)]
pub struct SquareSum {
    sum: ExactSum,
    not_finite: u64,
}

impl SquareSum {
    /// Adds the squares of an array.
    pub fn add_f32(&mut self, values: &[f32]) {
        let mut lanes = Lanes::new(1);
        let mut rest = values;
        while !rest.is_empty() {
            let sum = &mut self.sum;
            let added = lanes.add_blocks(rest, sum);
            rest = &rest[added..];
            if !rest.is_empty() {
                lanes.flush(&mut self.sum);
                let block;
                (block, rest) = rest.split_at(BLOCK.min(rest.len()));
                self.add_widely_spread(block, &mut lanes);
            }
        }
        lanes.flush(&mut self.sum);
    }

    /// A block that does not fit the window before: a new one, and one by one what is outside of it.
    fn add_widely_spread(&mut self, block: &[f32], lanes: &mut Lanes) {
        let largest = vectorised(|| {
            let magnitudes = block.iter().map(|x| x.to_bits() & !SIGN);
            let finite = magnitudes.map(|bits| if bits < INFINITE { bits } else { 0 });
            finite.fold(0, u32::max)
        });
        *lanes = Lanes::new((largest >> 23) as i32);
        if lanes.try_add(block) {
            return;
        }
        let mut inside = [0f32; BLOCK];
        for (inside, &value) in inside.iter_mut().zip(block) {
            let bits = value.to_bits() & !SIGN;
            match bits < lanes.smallest || bits >= INFINITE {
                true => self.add_one(value),
                false => *inside = value,
            }
        }
        let fits = lanes.try_add(&inside[..block.len()]);
        assert!(fits, "invariant: all else was taken out");
    }

    /// In integers. What is not finite is counted.
    fn add_one(&mut self, value: f32) {
        let bits = value.to_bits();
        let exponent = (bits >> 23 & 0xff) as i32;
        if exponent == 255 {
            self.not_finite += 1;
            return;
        }
        let significand = i128::from(bits & 0x7f_ffff | u32::from(exponent != 0) << 23);
        let exponent = exponent.max(1) - 150;
        self.sum.add(significand * significand, 2 * exponent);
    }

    /// Adds the squares of an array.
    pub fn add_f64(&mut self, values: &[f64]) {
        for value in values {
            let bits = value.to_bits();
            let exponent = (bits >> 52 & 0x7ff) as i32;
            if exponent == 0x7ff {
                self.not_finite += 1;
                continue;
            }
            let significand = bits & ((1 << 52) - 1) | u64::from(exponent != 0) << 52;
            let square = u128::from(significand) * u128::from(significand);
            let exponent = 2 * (exponent.max(1) - 1075);
            self.sum.add((square as u64).into(), exponent);
            self.sum.add(((square >> 64) as u64).into(), exponent + 64);
        }
    }

    /// Adds the squares of an array.
    pub fn add_f16(&mut self, values: &[f16]) {
        let mut wide = [0f32; BLOCK];
        for block in values.chunks(BLOCK) {
            let wide = &mut wide[..block.len()];
            f16_arrays::widen(block, wide);
            self.add_f32(wide);
        }
    }

    /// Adds the squares of an array.
    pub fn add_bf16(&mut self, values: &[bf16]) {
        let mut wide = [0f32; BLOCK];
        for block in values.chunks(BLOCK) {
            let wide = &mut wide[..block.len()];
            block.convert_to_f32_slice(wide);
            self.add_f32(wide);
        }
    }

    /// Adds sums of squares that were made elsewhere; one that is not finite counts as such a term.
    pub fn add_sums(&mut self, sums: &[f32]) {
        for sum in sums {
            let bits = sum.to_bits();
            let exponent = (bits >> 23 & 0xff) as i32;
            if exponent == 255 {
                self.not_finite += 1;
                continue;
            }
            let significand = i128::from(bits & 0x7f_ffff | u32::from(exponent != 0) << 23);
            self.sum.add(significand, exponent.max(1) - 150);
        }
    }

    /// Adds terms that were counted elsewhere and are not finite.
    pub fn add_not_finite(&mut self, count: u64) {
        self.not_finite += count;
    }

    /// Adds another sum.
    pub fn merge(&mut self, other: Self) {
        self.sum.merge(other.sum);
        self.not_finite += other.not_finite;
    }

    /// Infinities and NaNs among the terms.
    pub fn num_not_finite(&self) -> u64 {
        self.not_finite
    }

    /// The square root of the sum; infinite if a term was not finite.
    pub fn norm(&self) -> f64 {
        match self.not_finite {
            0 => self.sum.sqrt(),
            _ => f64::INFINITY,
        }
    }

    /// Integers that can be added up over up to 2^30 sums, one by one.
    pub fn to_parts(mut self) -> Vec<i64> {
        let mut parts = self.sum.digits().to_vec();
        parts.push(self.not_finite as i64);
        parts
    }

    /// From integers as [`to_parts`](Self::to_parts) gives them, or sums of such.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn from_parts(mut parts: Vec<i64>) -> Self {
        let not_finite = parts.pop().expect("invariant: a sum has parts") as u64;
        let sum = ExactSum::from_digits(parts);
        Self { sum, not_finite }
    }
}

const INFINITE: u32 = 0xff << 23;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::square_lanes::tests::arrays;
    use super::*;

    fn fast(values: &[f32]) -> SquareSum {
        let mut sum = SquareSum::default();
        sum.add_f32(values);
        sum
    }

    fn one_by_one(values: &[f32]) -> SquareSum {
        let mut sum = SquareSum::default();
        values.iter().for_each(|&value| sum.add_one(value));
        sum
    }

    proptest! {
        #[test]
        fn the_fast_way_is_the_way_in_integers(values in arrays()) {
            let (fast, right) = (fast(&values), one_by_one(&values));
            prop_assert_eq!(fast.to_parts(), right.to_parts());
        }

        #[test]
        fn the_order_and_the_cuts_do_not_matter(values in arrays(), cut in any::<usize>()) {
            let whole = fast(&values).to_parts();
            let (one, other) = values.split_at(cut % (values.len() + 1));
            let reversed: Vec<f32> = one.iter().rev().copied().collect();
            let parts = [fast(other).to_parts(), fast(&reversed).to_parts()];
            let sums: Vec<i64> = parts[0].iter().zip(&parts[1]).map(|(a, b)| a + b).collect();
            prop_assert_eq!(SquareSum::from_parts(sums).to_parts(), whole);
        }

        #[test]
        fn it_is_the_plain_sum_but_for_rounding(values in arrays()) {
            let values: Vec<f32> = values.into_iter().filter(|x| x.is_finite()).collect();
            let plain = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
            let norm = fast(&values).norm();
            prop_assert!((norm - plain).abs() <= 1e-12 * plain, "{norm} {plain}");
            let wide: Vec<f64> = values.iter().map(|&x| x.into()).collect();
            let mut sum = SquareSum::default();
            sum.add_f64(&wide);
            prop_assert_eq!(sum.norm().to_bits(), norm.to_bits());
        }
    }
}
