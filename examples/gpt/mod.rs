//! A GPT put together from Burn's own layers, in plain Burn code: nothing here knows of ranks.

mod model;
mod sample;

pub use model::{Block, Gpt, GptConfig};
pub use sample::sample;
