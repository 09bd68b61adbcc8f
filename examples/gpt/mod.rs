//! A GPT put together from Burn's own layers, in plain Burn code, and the same with its layers split.

mod model;
mod parallel_gpt;
mod sample;

pub use model::{Block, Gpt, GptConfig};
pub use parallel_gpt::{ParallelBlock, ParallelGpt};
pub use sample::sample;
