//! A shuffle that is the same on every machine and in every version: checkpoints outlive both, and
//! no random crate promises that for its shuffles.

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014, figure 17).
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform below `bound > 0`, without bias (Lemire, arXiv 1805.10941).
    fn below(&mut self, bound: u64) -> u64 {
        let reject = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.next()) * u128::from(bound);
            if product as u64 >= reject {
                return (product >> 64) as u64;
            }
        }
    }
}

/// The numbers below `len` in the order of an epoch.
pub(super) fn shuffled(len: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    let mut random = SplitMix64(SplitMix64(seed).next() ^ SplitMix64(!epoch).next());
    for last in (1..len).rev() {
        order.swap(last, random.below(last as u64 + 1) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_its_published_values() {
        // The first outputs of SplitMix64 for the seed 1234567.
        let mut random = SplitMix64(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.next()).collect();
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(first, expected);
    }

    #[test]
    fn orders_are_permutations_and_differ_by_seed_and_epoch() {
        let order = shuffled(100, 1, 0);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
        assert_eq!(order, shuffled(100, 1, 0));
        assert_ne!(order, shuffled(100, 1, 1));
        assert_ne!(order, shuffled(100, 2, 0));
    }
}
