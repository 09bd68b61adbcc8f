//! Attention over two sets of keys, made into attention over both.

use super::vectors::{VectorLoop, vectorised_loop};
use super::{KernelFloat, WideFloat};

/// `[rows, columns], [rows]` twice, the first pair in place: `outputs` of softmaxes over some keys and over
/// others, with the logarithms of their sums of exponentials, become those over all keys. A row without keys has
/// a logarithm of minus infinity, and its output is not looked at; without any at all it becomes 0.
///
/// `l = log(e^la + e^lb)`, `o = e^(la - l) oa + e^(lb - l) ob`. (M. Milakov and N. Gimelshein, "Online normalizer
/// calculation for softmax", arXiv 1805.02867; H. Liu et al., "Ring attention", arXiv 2310.01889.)
///
/// # Panics
/// If lengths do not fit.
pub fn softmax_merge<E: KernelFloat>(
    outputs: &mut [E],
    logs: &mut [E::Wide],
    other_outputs: &[E],
    other_logs: &[E::Wide],
    columns: usize,
) {
    assert_eq!(logs.len(), other_logs.len(), "as many rows");
    assert_eq!(outputs.len(), logs.len() * columns, "rows of these columns");
    assert_eq!(other_outputs.len(), outputs.len(), "arrays of one length");
    let zero = E::Wide::from_f64(0.0);
    let nothing = E::Wide::from_f64(f64::NEG_INFINITY);
    for (row, (log, other_log)) in logs.iter_mut().zip(other_logs).enumerate() {
        let place = row * columns..(row + 1) * columns;
        let (row, other) = (&mut outputs[place.clone()], &other_outputs[place]);
        if *other_log == nothing {
            if *log == nothing {
                row.fill(E::narrow(zero));
            }
            continue;
        }
        if *log == nothing {
            row.copy_from_slice(other);
            *log = *other_log;
            continue;
        }
        let largest = if *other_log > *log { *other_log } else { *log };
        let sum = (*log - largest).exp() + (*other_log - largest).exp();
        let total = largest + sum.ln();
        let weights = [(*log - total).exp(), (*other_log - total).exp()];
        vectorised_loop(Weighted {
            row,
            other,
            weights,
        });
        *log = total;
    }
}

struct Weighted<'a, E: KernelFloat> {
    row: &'a mut [E],
    other: &'a [E],
    weights: [E::Wide; 2],
}

impl<E: KernelFloat> VectorLoop for Weighted<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        for (a, b) in self.row.iter_mut().zip(self.other) {
            *a = E::narrow(a.widen() * self.weights[0] + b.widen() * self.weights[1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Softmax over `scores` of `values`, and its logarithm.
    fn attention(scores: &[f64], values: &[f64]) -> (f64, f64) {
        let sum: f64 = scores.iter().map(|s| s.exp()).sum();
        let weighted = scores.iter().zip(values).map(|(s, v)| s.exp() * v);
        match scores.is_empty() {
            true => (f64::NAN, f64::NEG_INFINITY),
            false => (weighted.sum::<f64>() / sum, sum.ln()),
        }
    }

    proptest! {
        #[test]
        fn parts_are_the_whole(
            keys in prop::collection::vec((-20.0..20.0f64, -2.0..2.0f64), 0..12),
            cut in 0usize..12,
        ) {
            let (scores, values): (Vec<f64>, Vec<f64>) = keys.into_iter().unzip();
            let cut = cut.min(scores.len());
            let (mut out, mut log) = attention(&scores[..cut], &values[..cut]);
            let (other, other_log) = attention(&scores[cut..], &values[cut..]);
            let (right, right_log) = attention(&scores, &values);
            let (mut outs, mut logs) = ([out as f32; 3], [log as f32]);
            softmax_merge(&mut outs, &mut logs, &[other as f32; 3], &[other_log as f32], 3);
            let (mut o, mut l) = ([out], [log]);
            softmax_merge(&mut o, &mut l, &[other], &[other_log], 1);
            (out, log) = (o[0], l[0]);
            if scores.is_empty() {
                prop_assert_eq!((out, log, outs), (0.0, f64::NEG_INFINITY, [0.0; 3]));
            } else {
                prop_assert!((out - right).abs() < 1e-12 && (log - right_log).abs() < 1e-12);
                prop_assert!(outs.iter().all(|&o| (f64::from(o) - right).abs() < 1e-5));
                prop_assert!((f64::from(logs[0]) - right_log).abs() < 1e-5);
            }
        }
    }
}
