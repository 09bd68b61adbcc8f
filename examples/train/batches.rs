//! [`Batches`]: the samples of each step.

use burn::data::dataset::Dataset;
use burn_dist::data::{DistributedSampler, Remainder, SamplerOptions};
use burn_dist::{ProcessGroup, Result};

use super::Arguments;
use crate::text::{Corpus, WindowDataset};

/// The samples of each step.
pub(super) struct Batches<'a> {
    arguments: &'a Arguments,
    dataset: WindowDataset,
    sampler: DistributedSampler,
}

impl<'a> Batches<'a> {
    /// Of this rank, one of those of `data`.
    pub(super) fn new(
        arguments: &'a Arguments,
        corpus: &Corpus,
        data: &ProcessGroup,
    ) -> Result<Self> {
        Ok(Self {
            arguments,
            dataset: WindowDataset::new(corpus.bytes(), arguments.seq),
            sampler: sampler(data, arguments, corpus)?,
        })
    }

    /// The windows of each micro-batch that this rank computes in a step.
    pub(super) fn micro_batches(&self, step: usize) -> Result<Vec<Vec<Vec<u8>>>> {
        let batch = self.arguments.batch;
        let items = self
            .sampler
            .local_batch(step as u64 * batch as u64, batch)?;
        let ranks_here = self.arguments.virtual_ranks();
        let size = items.len() / (ranks_here * self.arguments.micro_batches);
        Ok(items
            .chunks(size)
            .map(|items| items.iter().flat_map(|&i| self.dataset.get(i)).collect())
            .collect())
    }
}

fn sampler(
    data: &ProcessGroup,
    arguments: &Arguments,
    corpus: &Corpus,
) -> Result<DistributedSampler> {
    let windows = WindowDataset::new(corpus.bytes(), arguments.seq).len();
    let options = SamplerOptions {
        seed: arguments.seed,
        shuffle: true,
        remainder: Remainder::Drop,
    };
    DistributedSampler::new(windows, data.size(), data.index(), options)
}
