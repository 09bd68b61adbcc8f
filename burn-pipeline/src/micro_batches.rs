//! [`MicroBatches`]: a batch cut for a pipeline; pure.

use std::ops::Range;

use burn_dist::{DistError, Result};

/// Items of a batch in micro-batches, the first ones as large as the others or by up to one rounding step
/// larger: 7 items in 4 are 2, 2, 2 and 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MicroBatches {
    ranges: Vec<Range<usize>>,
}

impl MicroBatches {
    /// Cuts `items` into `count` micro-batches of `ceil(items/count)`, the last ones smaller.
    ///
    /// # Errors
    /// [`DistError::Config`] if one would be empty.
    pub fn new(items: usize, count: usize) -> Result<Self> {
        let size = items.div_ceil(count.max(1));
        let ranges: Vec<_> = (0..count)
            .map(|i| (i * size).min(items)..((i + 1) * size).min(items))
            .collect();
        if count == 0 || ranges.iter().any(|range| range.is_empty()) {
            return Err(DistError::config(
                format!(
                    "{items} items in {count} micro-batches of up to {size}: one would be empty"
                ),
                "take fewer micro-batches, or a larger batch",
            ));
        }
        Ok(Self { ranges })
    }

    /// The items of each.
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// What each micro-batch's mean loss counts: its items over the mean number of items, so that the mean
    /// over micro-batches is the mean over items. 1 for equal ones.
    pub fn weights(&self) -> Vec<f64> {
        let items: usize = self.ranges.iter().map(Range::len).sum();
        let count = self.ranges.len();
        let lens = self.ranges.iter().map(Range::len);
        lens.map(|len| (len * count) as f64 / items as f64)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_smaller_and_count_less() {
        let cut = |items, count| MicroBatches::new(items, count).expect("right");
        let lens = |cut: &MicroBatches| cut.ranges().iter().map(Range::len).collect::<Vec<_>>();
        let uneven = cut(7, 4);
        assert_eq!(lens(&uneven), [2, 2, 2, 1]);
        let losses = [1.0, 2.0, 3.0, 10.0];
        let weighted = losses
            .iter()
            .zip(uneven.weights())
            .map(|(loss, w)| loss * w);
        let mean = (2.0 * (1.0 + 2.0 + 3.0) + 10.0) / 7.0;
        assert!((weighted.sum::<f64>() / 4.0 - mean).abs() < 1e-12);
        assert_eq!(cut(8, 4).weights(), [1.0; 4]);
        assert_eq!(lens(&cut(3, 3)), [1; 3]);
        for (items, count) in [(0, 1), (3, 0), (3, 4), (5, 4)] {
            assert!(MicroBatches::new(items, count).is_err(), "{items} {count}");
        }
    }
}
