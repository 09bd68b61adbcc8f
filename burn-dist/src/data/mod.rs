//! Which rank sees which items, and how much each token counts.

mod distributed_sampler;
mod sharded_dataset;
mod shuffle;
mod skipping_loader;
mod token_weight;

pub use distributed_sampler::{DistributedSampler, Remainder, SamplerOptions};
pub use sharded_dataset::ShardedDataset;
pub use skipping_loader::SkippingLoader;
pub use token_weight::TokenWeight;
