//! [`ShardedDataset`]: one replica's items of one epoch, as a Burn dataset.

use std::error::Error;

use burn::data::dataset::Dataset;

use super::DistributedSampler;

/// Shows one replica's items of one epoch; goes into Burn's data loader like any dataset.
#[derive(Debug, Clone)]
pub struct ShardedDataset<D> {
    dataset: D,
    items: Vec<usize>,
}

impl<D> ShardedDataset<D> {
    /// The items that `sampler` gives its replica in `epoch`. The sampler was made for the length
    /// of `dataset`.
    pub fn new(dataset: D, sampler: &DistributedSampler, epoch: u64) -> Self {
        Self {
            dataset,
            items: sampler.local_items(epoch),
        }
    }

    /// The whole dataset again.
    pub fn into_inner(self) -> D {
        self.dataset
    }
}

impl<I, E, D> Dataset<I, E> for ShardedDataset<D>
where
    E: Error + Send + Sync + 'static,
    D: Dataset<I, E>,
{
    fn get(&self, index: usize) -> Result<I, E> {
        self.dataset.get(self.items[index])
    }

    fn len(&self) -> usize {
        self.items.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::SamplerOptions;
    use burn::data::dataset::InMemDataset;

    #[test]
    fn a_shard_shows_its_items() {
        let whole = InMemDataset::new(vec!['a', 'b', 'c', 'd', 'e']);
        let options = SamplerOptions::default();
        let sampler = DistributedSampler::new(whole.len(), 2, 1, options).expect("valid");
        let shard = ShardedDataset::new(whole, &sampler, 0);
        let items: Result<Vec<char>, _> = shard.iter().collect();
        assert_eq!(items.expect("in memory"), ['b', 'd', 'a']);
    }
}
