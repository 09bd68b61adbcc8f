//! Batch normalization over the batches of several ranks.
//!
//! A rank's batch is smaller than that of one device, and so are the statistics that Burn's `BatchNorm` takes
//! of it.

mod sync_batch_norm;

pub use sync_batch_norm::SyncBatchNorm;
