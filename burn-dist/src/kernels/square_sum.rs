//! [`SquareSum`]: a sum of squares that does not depend on the order of its terms.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::vectors::{VectorLoop, prefetch, vectorised_loop};
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
        for block in values.chunks(BLOCK) {
            if !lanes.try_add(block) {
                lanes.flush(&mut self.sum);
                self.add_widely_spread(block, &mut lanes);
            }
            if lanes.blocks == BLOCKS {
                lanes.flush(&mut self.sum);
            }
        }
        lanes.flush(&mut self.sum);
    }

    /// A block that does not fit the window before: a new one, and one by one what is outside of it.
    fn add_widely_spread(&mut self, block: &[f32], lanes: &mut Lanes) {
        let finite = block.iter().map(|x| x.to_bits() & !SIGN);
        let largest = finite.filter(|&bits| bits < INFINITE).max();
        *lanes = Lanes::new((largest.unwrap_or(0) >> 23) as i32);
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

const SIGN: u32 = 1 << 31;
const INFINITE: u32 = 0xff << 23;
/// Elements that are tested together.
const BLOCK: usize = 2048;
/// Blocks that both sums have room for.
const BLOCKS: usize = 4;
/// Sums beside each other.
const WIDTH: usize = 32;
/// log2 of the terms of one sum.
const TERMS: i32 = (BLOCK * BLOCKS / WIDTH).ilog2() as i32;
/// How far below the largest exponent a block's elements may lie.
const REACH: i32 = 20;
/// Bytes from what is computed on to what is fetched: some hundred nanoseconds.
const AHEAD: usize = 8192;

/// Sums of the squares of elements of like size.
struct Lanes {
    /// Multiples of `unit`, on top of `2^52 unit`.
    high: [f64; WIDTH],
    /// What was rounded off.
    low: [f64; WIDTH],
    /// log2
    unit: i32,
    /// Bits of the smallest element inside the window.
    smallest: u32,
    blocks: usize,
}

impl Lanes {
    /// A window for elements below twice the power of two of this biased exponent.
    fn new(largest: i32) -> Self {
        let largest = largest.max(1);
        let smallest = largest - REACH;
        // Room for twice the size of the largest square, in as many terms.
        let room = 2 * (largest - 127) + 4 + TERMS;
        Self {
            high: [2f64.powi(room); WIDTH],
            low: [0.0; WIDTH],
            unit: room - 52,
            smallest: match smallest > 1 {
                true => (smallest as u32) << 23,
                false => 1,
            },
            blocks: 0,
        }
    }

    /// Adds a block if all of it is inside the window, else nothing.
    fn try_add(&mut self, block: &[f32]) -> bool {
        let (high, low, smallest) = vectorised_loop(BlockSquares {
            block,
            high: self.high,
            low: self.low,
        });
        let limit = 2f64.powi(self.unit + 53);
        // Sums grow, so that none was above the limit before; comparisons with NaN are false.
        let fits = high.iter().all(|&sum| sum < limit) && smallest >= 2 * self.smallest - 1;
        if fits {
            (self.high, self.low) = (high, low);
            self.blocks += 1;
        }
        fits
    }

    /// Moves both sums on.
    fn flush(&mut self, sum: &mut ExactSum) {
        if self.blocks == 0 {
            return;
        }
        let base = 2f64.powi(self.unit + 52);
        let scaled = |values: &[f64; WIDTH], base: f64, unit: i32| -> i128 {
            // In two steps: the power alone may be out of range.
            let factor = 2f64.powi(-unit / 2);
            let rest = 2f64.powi(-unit - -unit / 2);
            let whole = values.iter().map(|x| ((x - base) * factor * rest) as i64);
            whole.sum::<i64>().into()
        };
        sum.add(scaled(&self.high, base, self.unit), self.unit);
        // A square's lowest bit.
        let smallest = ((self.smallest >> 23) as i32).max(1);
        let unit = 2 * (smallest - 150);
        sum.add(scaled(&self.low, 0.0, unit), unit);
        self.high = [base; WIDTH];
        self.low = [0.0; WIDTH];
        self.blocks = 0;
    }
}

/// One block into both sums.
struct BlockSquares<'a> {
    block: &'a [f32],
    high: [f64; WIDTH],
    low: [f64; WIDTH],
}

impl VectorLoop for BlockSquares<'_> {
    /// Both sums, and twice the bits of the smallest element that is not 0, less one.
    type Output = ([f64; WIDTH], [f64; WIDTH], u32);

    #[inline(always)]
    fn run<const FUSED: bool>(self) -> Self::Output {
        let Self {
            block,
            mut high,
            mut low,
        } = self;
        let mut smallest = [u32::MAX; WIDTH];
        let mut add = |values: &[f32; WIDTH]| {
            for i in 0..WIDTH {
                let twice = values[i].to_bits() << 1;
                smallest[i] = smallest[i].min(twice.wrapping_sub(1));
                let x = f64::from(values[i]);
                // Both ways are exact: a square of 24 bits has at most 48.
                let square = x * x;
                let sum = match FUSED {
                    true => x.mul_add(x, high[i]),
                    false => high[i] + square,
                };
                let rounded = sum - high[i];
                high[i] = sum;
                low[i] += match FUSED {
                    true => x.mul_add(x, -rounded),
                    false => square - rounded,
                };
            }
        };
        let (rows, rest) = block.as_chunks::<WIDTH>();
        for row in rows {
            prefetch(row, AHEAD);
            add(row);
        }
        if !rest.is_empty() {
            let mut row = [0.0; WIDTH];
            row[..rest.len()].copy_from_slice(rest);
            add(&row);
        }
        let smallest = smallest.into_iter().fold(u32::MAX, u32::min);
        (high, low, smallest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    /// A length, and how many bits of exponents elements are spread over.
    fn arrays() -> impl Strategy<Value = Vec<f32>> {
        let lengths = prop_oneof![0usize..40, 2000usize..2100, 8000usize..20_000];
        (lengths, 0u32..256, 0u32..256, any::<u64>()).prop_map(|(len, spread, least, seed)| {
            let mut state = seed;
            let mut values = Vec::with_capacity(len);
            for _ in 0..len {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let random = (state >> 32) as u32;
                let exponent = least + random % (spread + 1);
                let exponent = exponent.min(255) * u32::from(!random.is_multiple_of(97));
                values.push(f32::from_bits(random & (SIGN | 0x7f_ffff) | exponent << 23));
            }
            values
        })
    }

    proptest! {
        #[test]
        fn the_fast_way_is_the_way_in_integers(values in arrays()) {
            let (fast, right) = (fast(&values), one_by_one(&values));
            prop_assert_eq!(fast.to_parts(), right.to_parts());
        }

        #[test]
        fn without_fused_products_the_same(values in arrays()) {
            for block in values.chunks(BLOCK) {
                let squares = || BlockSquares {
                    block,
                    high: [2f64.powi(40); WIDTH],
                    low: [0.0; WIDTH],
                };
                let bits = |(high, low, smallest): ([f64; WIDTH], [f64; WIDTH], u32)| {
                    (high.map(f64::to_bits), low.map(f64::to_bits), smallest)
                };
                if block.iter().all(|x| x.abs() < 1e6) {
                    let (fused, plain) = (squares().run::<true>(), squares().run::<false>());
                    prop_assert_eq!(bits(fused), bits(plain));
                }
            }
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
