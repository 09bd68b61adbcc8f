//! [`DistributedSampler`]: which items each replica sees.

use std::sync::{Arc, Mutex};

use super::shuffle::shuffled;
use crate::error::{DistError, Result};

/// What happens to items that do not divide among the replicas at the end of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Remainder {
    /// The epoch's first items are seen again, so that all replicas take equally many;
    /// [`DistributedSampler::is_padding`] tells which.
    #[default]
    Pad,
    /// The last items of the epoch's order are left out.
    Drop,
}

/// How a [`DistributedSampler`] works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SamplerOptions {
    /// With the epoch it decides the order.
    pub seed: u64,
    /// `false`: items come in their own order.
    pub shuffle: bool,
    /// What happens to items that do not divide among the replicas.
    pub remainder: Remainder,
}

/// Assigns a dataset's items to data-parallel replicas. Pure arithmetic: no item is read.
///
/// The order of an epoch follows from the seed and the epoch alone, not from the number of replicas.
/// There are two ways to walk it:
///
/// * **by position** ([`local_batch`](Self::local_batch)): the state is one number, the samples
///   consumed so far by all replicas. Epochs follow one another without padding or dropping, and a
///   run can go on under another number of replicas without repeating or skipping an item.
/// * **by epoch** ([`local_items`](Self::local_items)): each replica's items of one epoch, equally
///   many on each, padded or dropped as asked for.
#[derive(Debug, Clone)]
pub struct DistributedSampler {
    num_items: usize,
    num_replicas: usize,
    index: usize,
    options: SamplerOptions,
    /// The order of the epoch that was asked for last.
    cache: Arc<Mutex<Option<EpochOrder>>>,
}

/// An epoch and its order.
type EpochOrder = (u64, Arc<[usize]>);

impl DistributedSampler {
    /// For replica `index` of `num_replicas`, over a dataset of `num_items`.
    ///
    /// # Errors
    /// [`DistError::Config`] for an empty dataset, no replicas, or an index beyond them.
    pub fn new(
        num_items: usize,
        num_replicas: usize,
        index: usize,
        options: SamplerOptions,
    ) -> Result<Self> {
        if num_items == 0 {
            return Err(DistError::config(
                "the dataset has no items",
                "give one with at least one item",
            ));
        }
        if index >= num_replicas {
            return Err(DistError::config(
                format!("replica {index} of {num_replicas} does not exist"),
                "replicas count from 0; use the index in the data-parallel group",
            ));
        }
        Ok(Self {
            num_items,
            num_replicas,
            index,
            options,
            cache: Arc::default(),
        })
    }

    /// Number of items of the dataset.
    pub fn num_items(&self) -> usize {
        self.num_items
    }

    /// The order of an epoch, the same for every number of replicas.
    pub fn order(&self, epoch: u64) -> Arc<[usize]> {
        let mut cache = self
            .cache
            .lock()
            .expect("invariant: no panic under this lock");
        if let Some((known, order)) = &*cache
            && *known == epoch
        {
            return order.clone();
        }
        let order: Arc<[usize]> = if self.options.shuffle {
            shuffled(self.num_items, self.options.seed, epoch).into()
        } else {
            (0..self.num_items).collect()
        };
        *cache = Some((epoch, order.clone()));
        order
    }

    /// Epoch and offset in its order, after `consumed` samples over all replicas.
    pub fn position(&self, consumed: u64) -> (u64, usize) {
        let items = self.num_items as u64;
        (consumed / items, (consumed % items) as usize)
    }

    /// The next `batch` items over all replicas after `consumed` samples; goes on into the next
    /// epoch.
    pub fn global_batch(&self, consumed: u64, batch: usize) -> Vec<usize> {
        let mut items = Vec::with_capacity(batch);
        while items.len() < batch {
            let (epoch, offset) = self.position(consumed + items.len() as u64);
            let order = self.order(epoch);
            let count = (batch - items.len()).min(order.len() - offset);
            items.extend_from_slice(&order[offset..offset + count]);
        }
        items
    }

    /// This replica's part of [`global_batch`](Self::global_batch): a contiguous one, in replica
    /// order, so that the parts joined are the global batch for any number of replicas.
    ///
    /// # Errors
    /// [`DistError::Config`] if the batch does not divide among the replicas.
    pub fn local_batch(&self, consumed: u64, batch: usize) -> Result<Vec<usize>> {
        if !batch.is_multiple_of(self.num_replicas) {
            return Err(DistError::config(
                format!(
                    "a global batch of {batch} does not divide among {} replicas",
                    self.num_replicas
                ),
                format!("take {}", batch.next_multiple_of(self.num_replicas)),
            ));
        }
        let part = batch / self.num_replicas;
        let start = consumed + (self.index * part) as u64;
        Ok(self.global_batch(start, part))
    }

    /// Number of items of each replica in one epoch.
    pub fn local_len(&self) -> usize {
        match self.options.remainder {
            Remainder::Pad => self.num_items.div_ceil(self.num_replicas),
            Remainder::Drop => self.num_items / self.num_replicas,
        }
    }

    /// This replica's items of an epoch: places `index`, `index + replicas`, ... of its order.
    pub fn local_items(&self, epoch: u64) -> Vec<usize> {
        let order = self.order(epoch);
        (0..self.local_len())
            .map(|i| order[(self.index + i * self.num_replicas) % self.num_items])
            .collect()
    }

    /// Whether the item at a place of [`local_items`](Self::local_items) is there to fill up: it is
    /// also seen elsewhere, and does not count in an evaluation.
    pub fn is_padding(&self, place: usize) -> bool {
        self.index + place * self.num_replicas >= self.num_items
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn samplers(items: usize, replicas: usize, options: SamplerOptions) -> Vec<DistributedSampler> {
        (0..replicas)
            .map(|i| DistributedSampler::new(items, replicas, i, options).expect("valid"))
            .collect()
    }

    fn options(shuffle: bool, remainder: Remainder) -> SamplerOptions {
        SamplerOptions {
            seed: 7,
            shuffle,
            remainder,
        }
    }

    #[test]
    fn padding_and_dropping_are_stated() {
        let pad = samplers(5, 3, options(false, Remainder::Pad));
        let items: Vec<_> = pad.iter().map(|s| s.local_items(0)).collect();
        assert_eq!(items, [[0, 3], [1, 4], [2, 0]]);
        assert!(pad[2].is_padding(1) && !pad[1].is_padding(1) && !pad[2].is_padding(0));
        let dropped = samplers(5, 3, options(false, Remainder::Drop));
        let items: Vec<_> = dropped.iter().map(|s| s.local_items(0)).collect();
        assert_eq!(items, [[0], [1], [2]]);
    }

    #[test]
    fn a_dataset_smaller_than_the_world_is_padded_around() {
        let pad = samplers(2, 5, options(false, Remainder::Pad));
        let items: Vec<_> = pad.iter().map(|s| s.local_items(0)).collect();
        assert_eq!(items, [[0], [1], [0], [1], [0]]);
        let counted = pad.iter().filter(|s| !s.is_padding(0)).count();
        assert_eq!(counted, 2);
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let options = SamplerOptions::default();
        assert!(DistributedSampler::new(0, 1, 0, options).is_err());
        assert!(DistributedSampler::new(5, 2, 2, options).is_err());
        let sampler = DistributedSampler::new(5, 2, 0, options).expect("valid");
        assert!(
            sampler
                .local_batch(0, 3)
                .expect_err("odd")
                .to_string()
                .contains("take 4")
        );
    }

    proptest! {
        #[test]
        fn an_epoch_is_a_disjoint_cover(
            items in 1usize..200, replicas in 1usize..9, epoch in 0u64..4, shuffle: bool, pad: bool,
        ) {
            let remainder = if pad { Remainder::Pad } else { Remainder::Drop };
            let samplers = samplers(items, replicas, options(shuffle, remainder));
            let mut counted = Vec::new();
            for sampler in &samplers {
                let local = sampler.local_items(epoch);
                prop_assert_eq!(local.len(), sampler.local_len());
                counted.extend(
                    local.into_iter().enumerate()
                        .filter(|(place, _)| !sampler.is_padding(*place))
                        .map(|(_, item)| item),
                );
            }
            counted.sort_unstable();
            let kept = if pad { items } else { items / replicas * replicas };
            prop_assert_eq!(counted.len(), kept);
            counted.dedup();
            prop_assert_eq!(counted.len(), kept);
        }

        #[test]
        fn a_run_goes_on_under_another_number_of_replicas(
            items in 1usize..50, first in 1usize..5, second in 1usize..5, steps in 0u64..6,
        ) {
            let batch = 12 * first * second;
            let step = |replicas: usize, consumed: u64| -> Vec<usize> {
                samplers(items, replicas, options(true, Remainder::Pad))
                    .iter()
                    .flat_map(|s| s.local_batch(consumed, batch).expect("divides"))
                    .collect()
            };
            let consumed = steps * batch as u64;
            let one = step(1, consumed);
            prop_assert_eq!(&step(first, consumed), &one);
            prop_assert_eq!(&step(second, consumed), &one);
            // Every whole epoch holds every item once.
            let sampler = &samplers(items, 1, options(true, Remainder::Pad))[0];
            let mut epoch = sampler.global_batch(items as u64 * 3, items);
            epoch.sort_unstable();
            prop_assert_eq!(epoch, (0..items).collect::<Vec<_>>());
        }
    }
}
