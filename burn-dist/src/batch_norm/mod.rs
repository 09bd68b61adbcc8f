//! Batch normalization over the batches of several ranks.
//!
//! Data parallelism makes a rank's batch smaller than that of one device, and Burn's `BatchNorm` with it:
//! the only layer whose numbers depend on how a batch is split.

mod sync_batch_norm;

pub use sync_batch_norm::SyncBatchNorm;
