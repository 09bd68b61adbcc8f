//! [`DataParallelConfig`].

use super::BucketSizes;

/// How [`DataParallel`](super::DataParallel) works.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DataParallelConfig {
    /// Target sizes of the buckets.
    pub bucket_sizes: BucketSizes,
    /// `true`: the gradient is the mean over ranks and micro-steps, divided once after the sum.
    /// `false` (default, as in PyTorch): the mean over ranks of the sum over micro-steps.
    pub average_micro_steps: bool,
    /// `true`: the gradient is the sum over ranks, as Burn's own accumulation adds up micro-steps.
    /// `false` (default): the mean.
    pub sum_ranks: bool,
    /// `true`: reduced gradients stay split, each rank gets its part of every bucket from
    /// [`DataParallel::sync_shards`](super::DataParallel::sync_shards); `S(n-1)/n` bytes per rank. `false`: [`DataParallel::sync`](super::DataParallel::sync).
    pub shard_gradients: bool,
}
