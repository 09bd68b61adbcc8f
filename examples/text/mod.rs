//! Real text as bytes, and batches of it.

mod corpus;
pub(crate) mod sources;
mod window_dataset;

pub use corpus::Corpus;
pub use window_dataset::{WindowDataset, token_batch};
