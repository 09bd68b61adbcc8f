//! How an array is cut into one chunk per member, and the bytes that each algorithm sends. Pure.

use std::ops::Range;

use super::Algorithm;

/// A balanced partition of `len` elements among `n` members: contiguous, in order, the first
/// `len % n` chunks one element longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunks {
    len: usize,
    n: usize,
}

impl Chunks {
    /// Cuts `len` elements among `n > 0` members.
    pub fn new(len: usize, n: usize) -> Self {
        Self { len, n }
    }

    /// The elements of chunk `index`.
    pub fn range(&self, index: usize) -> Range<usize> {
        let (size, longer) = (self.len / self.n, self.len % self.n);
        let start = index * size + index.min(longer);
        start..start + size + usize::from(index < longer)
    }

    /// Number of elements of chunk `index`.
    pub fn size(&self, index: usize) -> usize {
        self.range(index).len()
    }

    /// The same partition in bytes of elements of `size` bytes.
    pub fn byte_range(&self, index: usize, size: usize) -> Range<usize> {
        let range = self.range(index);
        range.start * size..range.end * size
    }
}

/// Elements that member `index` of `n` sends in an all_reduce of `len` elements.
///
/// Direct, host first among ranks of one host, and ring: `2 len (n-1)/n`, up to the rounding of chunks, and exactly `2 len (n-1)` over
/// all members. Centralized: `len`, and `len (n-1)` for the server, index 0.
pub fn all_reduce_elements_sent(algorithm: Algorithm, len: usize, n: usize, index: usize) -> usize {
    reduce_scatter_elements_sent(algorithm, len, n, index)
        + match algorithm {
            Algorithm::Direct | Algorithm::HostFirst => (n - 1) * Chunks::new(len, n).size(index),
            // All chunks but the next member's: that one arrives last and stays.
            Algorithm::Ring => len - Chunks::new(len, n).size((index + 1) % n),
            Algorithm::Centralized if index == 0 => {
                (n - 1) * len - reduce_scatter_elements_sent(algorithm, len, n, 0)
            }
            Algorithm::Centralized => 0,
        }
}

/// Elements that member `index` of `n` sends in a reduce_scatter of `len` elements.
pub fn reduce_scatter_elements_sent(
    algorithm: Algorithm,
    len: usize,
    n: usize,
    index: usize,
) -> usize {
    let own = Chunks::new(len, n).size(index);
    match algorithm {
        Algorithm::Direct | Algorithm::HostFirst | Algorithm::Ring => len - own,
        Algorithm::Centralized if index == 0 => len - own,
        Algorithm::Centralized => len,
    }
}

/// Elements that member `index` of `n` sends in an all_gather whose output has `len` elements.
pub fn all_gather_elements_sent(algorithm: Algorithm, len: usize, n: usize, index: usize) -> usize {
    let own = len / n;
    match algorithm {
        Algorithm::Direct | Algorithm::HostFirst | Algorithm::Ring => (n - 1) * own,
        Algorithm::Centralized if index == 0 => (n - 1) * len,
        Algorithm::Centralized => own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_mebibyte_sends_the_published_bytes() {
        let elements = (1 << 20) / 4;
        for (n, expected) in [
            (2, 1_048_576.0),
            (3, 1_398_101.33),
            (4, 1_572_864.0),
            (8, 1_835_008.0),
        ] {
            for algorithm in [Algorithm::Direct, Algorithm::Ring] {
                let total: usize = (0..n)
                    .map(|i| 4 * all_reduce_elements_sent(algorithm, elements, n, i))
                    .sum();
                let mean = total as f64 / n as f64;
                assert!((mean - expected).abs() < 0.01, "{algorithm:?} {n}: {mean}");
            }
        }
    }

    #[test]
    fn the_server_is_the_bottleneck() {
        let sent = |i| all_reduce_elements_sent(Algorithm::Centralized, 100, 4, i);
        assert_eq!([sent(0), sent(1), sent(2), sent(3)], [300, 100, 100, 100]);
    }

    proptest! {
        #[test]
        fn chunks_tile_the_array(len in 0usize..1000, n in 1usize..17) {
            let chunks = Chunks::new(len, n);
            let mut next = 0;
            for i in 0..n {
                let range = chunks.range(i);
                prop_assert_eq!(range.start, next);
                prop_assert!(range.len() == len / n || range.len() == len / n + 1);
                next = range.end;
            }
            prop_assert_eq!(next, len);
            for algorithm in [Algorithm::Direct, Algorithm::Ring] {
                let total: usize = (0..n)
                    .map(|i| all_reduce_elements_sent(algorithm, len, n, i))
                    .sum();
                prop_assert_eq!(total, 2 * len * (n - 1));
            }
        }
    }
}
