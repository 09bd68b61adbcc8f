//! [`SkippingLoader`]: batches that are not wanted are not read.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::{Dataset, DatasetError};
use burn::tensor::Device;

use super::{DistributedSampler, SamplerOptions};

/// A data loader for ranks that each take some of the batches: `Iterator::nth` passes over batches without
/// reading their items. The order of an epoch is that of a [`DistributedSampler`]: it follows from the seed and
/// the epoch alone, so that loaders on different ranks agree.
///
/// ```
/// use burn::data::dataloader::{DataLoader, batcher::Batcher};
/// use burn::data::dataset::InMemDataset;
/// use burn::tensor::Device;
/// use burn_dist::data::SkippingLoader;
///
/// struct Plain;
/// impl Batcher<u32, Vec<u32>> for Plain {
///     fn batch(&self, items: Vec<u32>, _device: &Device) -> Vec<u32> {
///         items
///     }
/// }
/// let items = InMemDataset::new((0..10).collect());
/// let loader = SkippingLoader::new(items, Plain, 4, &Device::flex());
/// let second = loader.iter().nth(1).unwrap()?;
/// assert_eq!(second, [4, 5, 6, 7]);
/// # Ok::<(), burn::data::dataset::DatasetError>(())
/// ```
pub struct SkippingLoader<I, O> {
    dataset: Arc<dyn Dataset<I>>,
    batcher: Arc<dyn Batcher<I, O>>,
    batch: usize,
    /// Of the dataset's items.
    part: Range<usize>,
    seed: Option<u64>,
    device: Device,
    epoch: AtomicU64,
}

impl<I, O> std::fmt::Debug for SkippingLoader<I, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SkippingLoader")
            .field("batch", &self.batch)
            .field("part", &self.part)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

impl<I, O> SkippingLoader<I, O> {
    /// Over a dataset in its own order, in batches of `batch` items on `device`; the last one may be smaller.
    ///
    /// # Panics
    /// If `batch` is 0.
    pub fn new(
        dataset: impl Dataset<I> + 'static,
        batcher: impl Batcher<I, O> + 'static,
        batch: usize,
        device: &Device,
    ) -> Self {
        assert!(batch > 0, "batches have at least one item");
        Self {
            part: 0..dataset.len(),
            dataset: Arc::new(dataset),
            batcher: Arc::new(batcher),
            batch,
            seed: None,
            device: device.clone(),
            epoch: AtomicU64::new(0),
        }
    }

    /// Shuffles each epoch.
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// The epoch that is read next: 0 at first, one more with each `iter`.
    pub fn start_at_epoch(self, epoch: u64) -> Self {
        self.epoch.store(epoch, Ordering::Relaxed);
        self
    }

    fn copy(&self, part: Range<usize>, device: &Device) -> Self {
        Self {
            dataset: self.dataset.clone(),
            batcher: self.batcher.clone(),
            batch: self.batch,
            part,
            seed: self.seed,
            device: device.clone(),
            epoch: AtomicU64::new(self.epoch.load(Ordering::Relaxed)),
        }
    }

    fn order(&self, epoch: u64) -> Arc<[usize]> {
        let options = SamplerOptions {
            seed: self.seed.unwrap_or(0),
            shuffle: self.seed.is_some(),
            ..SamplerOptions::default()
        };
        // There is no sampler of nothing.
        DistributedSampler::new(self.part.len(), 1, 0, options)
            .map_or_else(|_| Arc::from([]), |sampler| sampler.order(epoch))
    }
}

struct Batches<'a, I, O> {
    loader: &'a SkippingLoader<I, O>,
    order: Arc<[usize]>,
    next: usize,
}

impl<I: Send + Sync + 'static, O: Send + 'static> DataLoader<O> for SkippingLoader<I, O> {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed);
        Box::new(Batches {
            order: self.order(epoch),
            loader: self,
            next: 0,
        })
    }

    fn num_items(&self) -> usize {
        self.part.len()
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<O>> {
        Arc::new(self.copy(self.part.clone(), device))
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<O>> {
        let at = |place: usize| (self.part.start + place).min(self.part.end);
        Arc::new(self.copy(at(start)..at(end), &self.device))
    }
}

impl<I, O> Iterator for Batches<'_, I, O> {
    type Item = Result<O, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        let loader = self.loader;
        let end = self.order.len().min(self.next + loader.batch);
        let places = &self.order[self.next..end];
        if places.is_empty() {
            return None;
        }
        self.next = end;
        let items = places.iter().map(|place| loader.part.start + place);
        let items = loader.dataset.get_many(items.collect());
        Some(items.map(|items| loader.batcher.batch(items, &loader.device)))
    }

    fn nth(&mut self, n: usize) -> Option<Self::Item> {
        let passed = n.saturating_mul(self.loader.batch);
        self.next = self.next.saturating_add(passed).min(self.order.len());
        self.next()
    }
}

impl<I, O> DataLoaderIterator<O> for Batches<'_, I, O> {
    fn progress(&self) -> Progress {
        Progress::new(self.next, self.order.len(), Some("items".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Tells which items were read.
    struct Watched(usize, Arc<Mutex<Vec<usize>>>);

    impl Dataset<usize> for Watched {
        fn get(&self, index: usize) -> Result<usize, DatasetError> {
            self.1.lock().expect("not poisoned").push(index);
            Ok(index)
        }

        fn len(&self) -> usize {
            self.0
        }
    }

    struct Plain;

    impl Batcher<usize, Vec<usize>> for Plain {
        fn batch(&self, items: Vec<usize>, _device: &Device) -> Vec<usize> {
            items
        }
    }

    #[test]
    fn what_is_passed_over_is_not_read_and_nothing_is_lost() {
        for (items, ranks, seed) in [
            (22, 3, None),
            (22, 4, Some(5)),
            (0, 2, None),
            (3, 5, Some(1)),
        ] {
            let mut all = Vec::new();
            for rank in 0..ranks {
                let read = Arc::new(Mutex::new(Vec::new()));
                let watched = Watched(items, read.clone());
                let mut loader = SkippingLoader::new(watched, Plain, 2, &Device::flex());
                loader.seed = seed;
                let mut own = Vec::new();
                let mut batches = loader.iter();
                let mut next = batches.nth(rank);
                while let Some(batch) = next {
                    own.extend(batch.expect("readable"));
                    next = batches.nth(ranks - 1);
                }
                assert_eq!(own, *read.lock().expect("not poisoned"));
                all.extend(own);
            }
            all.sort_unstable();
            assert_eq!(all, (0..items).collect::<Vec<_>>());
        }
    }

    #[test]
    fn epochs_differ_and_copies_agree() {
        let watched = || Watched(40, Arc::default());
        let loader = SkippingLoader::new(watched(), Plain, 7, &Device::flex()).shuffle(3);
        let copy = loader.to_device(&Device::flex());
        let read = |loader: &dyn DataLoader<Vec<usize>>| -> Vec<usize> {
            loader
                .iter()
                .flat_map(|batch| batch.expect("readable"))
                .collect()
        };
        let (first, second) = (read(&loader), read(&loader));
        assert_ne!(first, second);
        assert_eq!((read(&*copy), read(&*copy)), (first, second.clone()));
        let later = SkippingLoader::new(watched(), Plain, 7, &Device::flex());
        assert_eq!(read(&later.shuffle(3).start_at_epoch(1)), second);
        let part = loader.slice(10, 20);
        let mut items = read(&*part);
        items.sort_unstable();
        assert_eq!((part.num_items(), items), (10, (10..20).collect()));
    }
}
