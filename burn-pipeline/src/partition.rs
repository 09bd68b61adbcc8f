//! [`partition`]: consecutive blocks for consecutive stages.

use std::ops::Range;

use burn_dist::{DistError, Result};

/// Cuts blocks of these costs (parameters, or measured seconds) into `stages` runs of consecutive blocks,
/// none empty as long as there are blocks enough, so that the most expensive run is as cheap as can be. Ties
/// go to earlier cuts: later stages get more.
///
/// # Errors
/// [`DistError::Config`] for no stages, or a cost that is no number of at least 0.
pub fn partition(costs: &[f64], stages: usize) -> Result<Vec<Range<usize>>> {
    if stages == 0 || costs.iter().any(|cost| !(cost.is_finite() && *cost >= 0.0)) {
        return Err(DistError::config(
            format!("blocks of costs {costs:?} on {stages} stages"),
            "take at least one stage, and finite costs",
        ));
    }
    let n = costs.len();
    let mut sums = vec![0.0];
    for cost in costs {
        sums.push(sums[sums.len() - 1] + cost);
    }
    // best[k][i]: the most expensive of k runs over the first i blocks, and where the last one starts.
    let mut best = vec![vec![(f64::INFINITY, 0); n + 1]; stages + 1];
    best[0][0] = (0.0, 0);
    for k in 1..=stages {
        for end in 0..=n {
            // An empty run only where there are more stages than blocks.
            let first = if n >= stages { k - 1 } else { 0 };
            let last = if n >= stages {
                end.saturating_sub(1)
            } else {
                end
            };
            for start in first..=last.min(end) {
                let cost = best[k - 1][start].0.max(sums[end] - sums[start]);
                if cost < best[k][end].0 {
                    best[k][end] = (cost, start);
                }
            }
        }
    }
    let mut ranges = Vec::new();
    let mut end = n;
    for k in (1..=stages).rev() {
        let start = best[k][end].1;
        ranges.push(start..end);
        end = start;
    }
    ranges.reverse();
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lens(costs: &[f64], stages: usize) -> Vec<usize> {
        let ranges = partition(costs, stages).expect("right");
        assert_eq!((ranges[0].start, ranges[stages - 1].end), (0, costs.len()));
        assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
        ranges.into_iter().map(|range| range.len()).collect()
    }

    #[test]
    fn the_most_expensive_stage_is_as_cheap_as_can_be() {
        assert_eq!(lens(&[1.0; 16], 8), [2; 8]);
        assert_eq!(lens(&[5.0, 1.0, 1.0, 1.0, 1.0, 1.0], 2), [1, 5]);
        assert_eq!(lens(&[1.0, 1.0, 1.0, 9.0], 3).last(), Some(&1));
        assert_eq!(lens(&[0.0, 0.0, 0.0], 3), [1, 1, 1]);
        assert_eq!(lens(&[1.0], 1), [1]);
        assert_eq!(lens(&[1.0], 3).iter().sum::<usize>(), 1);
        assert!(partition(&[1.0], 0).is_err());
        assert!(partition(&[f64::NAN], 1).is_err());
    }

    #[test]
    fn no_cut_is_better() {
        let costs = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0];
        let most = |cuts: [usize; 2]| {
            let parts = [
                &costs[..cuts[0]],
                &costs[cuts[0]..cuts[1]],
                &costs[cuts[1]..],
            ];
            parts
                .iter()
                .map(|part| part.iter().sum::<f64>())
                .fold(0.0, f64::max)
        };
        let ranges = partition(&costs, 3).expect("right");
        let found = most([ranges[0].end, ranges[1].end]);
        for a in 0..=8 {
            for b in a..=8 {
                assert!(found <= most([a, b]));
            }
        }
    }
}
