//! [`LayerActivations`]: what a transformer layer keeps for its backward pass, by formula. Pure.

use std::fmt;

/// Sizes of a transformer layer and how it is split. The letters are those of arXiv 2205.05198, section 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerActivations {
    /// b: sequences per micro-batch.
    pub batch: usize,
    /// s: tokens per sequence.
    pub seq: usize,
    /// h: width.
    pub hidden: usize,
    /// a: heads.
    pub heads: usize,
    /// Inner features of the feed-forward; 4h in the paper.
    pub d_ff: usize,
    /// t: ranks over which the layer is split.
    pub ranks: usize,
    /// Activations between the split parts are split along the sequence.
    pub sequence_parallel: bool,
    /// Column layers keep their part of the input only.
    pub regather: bool,
    /// Dropout on attention weights, inner features and both residual paths.
    pub dropout: bool,
}

/// One kind of array that a layer keeps: what it is, and how many elements a rank holds of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeptArrays {
    /// In words.
    pub what: &'static str,
    /// Elements per rank.
    pub elements: f64,
}

impl LayerActivations {
    /// What [`ParallelEncoderLayer`](super::ParallelEncoderLayer) keeps between its passes, with norms first
    /// and GELU, on a device without gradient checkpointing: term by term. Its input and output are not
    /// kept by it; masks of dropout are of the activation's element type.
    pub fn terms(&self) -> Vec<KeptArrays> {
        let n = |value: usize| value as f64;
        let (bs, t) = (n(self.batch * self.seq), n(self.ranks));
        let (bsh, bsf) = (bs * n(self.hidden), bs * n(self.d_ff));
        let bass = bs * n(self.heads * self.seq);
        let sequence = if self.sequence_parallel { t } else { 1.0 };
        let input = if self.regather { sequence } else { 1.0 };
        let dropout = if self.dropout { 1.0 } else { 0.0 };
        let kept = |what, elements| KeptArrays { what, elements };
        vec![
            kept(
                "two norms: centred and normalised input",
                4.0 * bsh / sequence,
            ),
            kept("two norms: variance and deviation", 4.0 * bs / sequence),
            kept("inputs of the two column layers", 2.0 * bsh / input),
            kept("query, key, value and context", 4.0 * bsh / t),
            kept(
                "softmax: shifted scores, exponentials, weights",
                3.0 * bass / t,
            ),
            kept("softmax: sums", bs * n(self.heads) / t),
            kept(
                "inner features, before and after the activation",
                2.0 * bsf / t,
            ),
            kept(
                "dropout on weights and inner features",
                dropout * (bass + bsf) / t,
            ),
            kept(
                "dropout on the residual paths",
                dropout * 2.0 * bsh / sequence,
            ),
        ]
    }

    /// The sum of [`terms`](Self::terms), in bytes, for elements of `size` bytes.
    pub fn bytes(&self, size: usize) -> f64 {
        let terms = self.terms().into_iter();
        terms.map(|term| term.elements).sum::<f64>() * size as f64
    }

    /// The paper's count for its own layer with 16-bit activations, dropout, masks of a byte and `d_ff = 4h`:
    /// `sbh(34 + 5as/h)` whole, `sbh(10 + 24/t + 5as/(ht))` split, `(sbh/t)(34 + 5as/h)` with sequence
    /// parallelism. (Equations 2 to 4.)
    pub fn published_bytes(&self) -> f64 {
        let n = |value: usize| value as f64;
        let (sbh, t) = (n(self.batch * self.seq * self.hidden), n(self.ranks));
        let attention = 5.0 * n(self.heads * self.seq) / n(self.hidden);
        match self.sequence_parallel {
            true => sbh / t * (34.0 + attention),
            false => sbh * (10.0 + (24.0 + attention) / t),
        }
    }
}

impl fmt::Display for LayerActivations {
    /// A line for each term that is not zero.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terms = self.terms().into_iter();
        for term in terms.filter(|term| term.elements > 0.0) {
            writeln!(f, "{:>14.0}  {}", term.elements, term.what)?;
        }
        write!(f, "{:>14.0}  elements", self.bytes(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_values() {
        let whole = LayerActivations {
            batch: 1,
            seq: 2048,
            hidden: 12288,
            heads: 96,
            d_ff: 4 * 12288,
            ranks: 1,
            sequence_parallel: false,
            regather: true,
            dropout: true,
        };
        let split = LayerActivations { ranks: 8, ..whole };
        let sequence = LayerActivations {
            sequence_parallel: true,
            ..split
        };
        let mebibytes = [whole, split, sequence].map(|l| l.published_bytes() / f64::from(1 << 20));
        assert_eq!(mebibytes, [2736.0, 552.0, 342.0]);
        // Ours has the same shape: with everything split a rank keeps an equal part.
        assert_eq!(sequence.bytes(2), whole.bytes(2) / 8.0);
        assert!(split.bytes(2) > sequence.bytes(2) && split.bytes(2) < whole.bytes(2));
        assert!(whole.to_string().contains("query, key, value and context"));
    }
}
