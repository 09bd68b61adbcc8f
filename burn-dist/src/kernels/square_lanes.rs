//! [`Lanes`]: squares added up beside each other, exactly.

use super::ExactSum;
use super::vectors::{VectorLoop, prefetch, vectorised_loop};

pub(super) const SIGN: u32 = 1 << 31;
/// Elements that are tested together.
pub(super) const BLOCK: usize = 2048;
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
pub(super) struct Lanes {
    /// Multiples of `unit`, on top of `2^52 unit`.
    high: [f64; WIDTH],
    /// What was rounded off.
    low: [f64; WIDTH],
    /// log2
    unit: i32,
    /// Bits of the smallest element inside the window.
    pub(super) smallest: u32,
    blocks: usize,
}

impl Lanes {
    /// A window for elements below twice the power of two of this biased exponent.
    pub(super) fn new(largest: i32) -> Self {
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
    pub(super) fn try_add(&mut self, block: &[f32]) -> bool {
        vectorised_loop(OneBlock { block, lanes: self })
    }

    /// Adds blocks as long as they are inside the window, and moves full sums on; how many elements were added.
    pub(super) fn add_blocks(&mut self, values: &[f32], sum: &mut ExactSum) -> usize {
        vectorised_loop(Blocks {
            values,
            lanes: self,
            sum,
        })
    }

    #[inline(always)]
    fn add<const FUSED: bool>(&mut self, block: &[f32]) -> bool {
        let (high, low, smallest) = block_squares::<FUSED>(block, self.high, self.low);
        let limit = power(self.unit + 53);
        // Sums grow, so that none was above the limit before; comparisons with NaN are false.
        let below: u32 = high.iter().map(|&sum| u32::from(sum < limit)).sum();
        let fits = below == WIDTH as u32 && smallest >= 2 * self.smallest - 1;
        if fits {
            (self.high, self.low) = (high, low);
            self.blocks += 1;
        }
        fits
    }

    /// Moves both sums on.
    #[inline(always)]
    pub(super) fn flush(&mut self, sum: &mut ExactSum) {
        if self.blocks == 0 {
            return;
        }
        let base = power(self.unit + 52);
        sum.add(total(&self.high, base, self.unit), self.unit);
        // A square's lowest bit.
        let smallest = ((self.smallest >> 23) as i32).max(1);
        let unit = 2 * (smallest - 150);
        sum.add(total(&self.low, 0.0, unit), unit);
        self.high = [base; WIDTH];
        self.low = [0.0; WIDTH];
        self.blocks = 0;
    }
}

/// `2^exponent`, which is a normal number.
#[inline(always)]
fn power(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// The sum of all `(value - base) / 2^unit`, which are integers of up to 53 bits.
#[inline(always)]
fn total(values: &[f64; WIDTH], base: f64, unit: i32) -> i128 {
    // In two steps: the power alone may be out of range.
    let (factor, rest) = (power(-unit / 2), power(-unit - -unit / 2));
    // In two halves, whose sums are exact as well.
    const HALF: f64 = (1u64 << 27) as f64;
    let (mut upper, mut lower) = ([0.0; WIDTH], [0.0; WIDTH]);
    for i in 0..WIDTH {
        let whole = (values[i] - base) * factor * rest;
        // Added and taken off again, this leaves an integer.
        const INTEGER: f64 = 1.5 * (1u64 << 52) as f64;
        upper[i] = (whole / HALF + INTEGER) - INTEGER;
        lower[i] = whole - upper[i] * HALF;
    }
    exact_sum(upper) as i128 * HALF as i128 + exact_sum(lower) as i128
}

/// Of integers of up to 27 bits: no sum is rounded.
#[inline(always)]
fn exact_sum(mut values: [f64; WIDTH]) -> f64 {
    let mut width = WIDTH / 2;
    while width > 0 {
        for i in 0..width {
            values[i] += values[i + width];
        }
        width /= 2;
    }
    values[0]
}

/// One block, if all of it is inside the window.
struct OneBlock<'a> {
    block: &'a [f32],
    lanes: &'a mut Lanes,
}

impl VectorLoop for OneBlock<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<const FUSED: bool>(self) -> bool {
        self.lanes.add::<FUSED>(self.block)
    }
}

/// Blocks, as long as they are inside the window.
struct Blocks<'a> {
    values: &'a [f32],
    lanes: &'a mut Lanes,
    sum: &'a mut ExactSum,
}

impl VectorLoop for Blocks<'_> {
    /// Elements that were added.
    type Output = usize;

    #[inline(always)]
    fn run<const FUSED: bool>(self) -> usize {
        let mut added = 0;
        for block in self.values.chunks(BLOCK) {
            if !self.lanes.add::<FUSED>(block) {
                break;
            }
            added += block.len();
            if self.lanes.blocks == BLOCKS {
                self.lanes.flush(self.sum);
            }
        }
        added
    }
}

/// Both sums with a block added, and twice the bits of the smallest element that is not 0, less one.
#[inline(always)]
fn block_squares<const FUSED: bool>(
    block: &[f32],
    mut high: [f64; WIDTH],
    mut low: [f64; WIDTH],
) -> ([f64; WIDTH], [f64; WIDTH], u32) {
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

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A length, and how many bits of exponents elements are spread over.
    pub(in crate::kernels) fn arrays() -> impl Strategy<Value = Vec<f32>> {
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
        fn without_fused_products_the_same(values in arrays()) {
            for block in values.chunks(BLOCK) {
                let (high, low) = ([2f64.powi(40); WIDTH], [0.0; WIDTH]);
                let bits = |(high, low, smallest): ([f64; WIDTH], [f64; WIDTH], u32)| {
                    (high.map(f64::to_bits), low.map(f64::to_bits), smallest)
                };
                if block.iter().all(|x| x.abs() < 1e6) {
                    let fused = block_squares::<true>(block, high, low);
                    let plain = block_squares::<false>(block, high, low);
                    prop_assert_eq!(bits(fused), bits(plain));
                }
            }
        }
    }
}
