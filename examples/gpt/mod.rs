//! A GPT put together from Burn's own layers, in plain Burn code, and the same with its layers split,
//! whole or in the parts that a pipeline deals out.

mod model;
mod parallel_gpt;
mod parallel_parts;
mod parts;
mod sample;

pub use model::{Block, Gpt, GptConfig};
pub use parallel_gpt::{ParallelBlock, ParallelGpt};
pub use parallel_parts::ParallelGptPart;
pub use parts::{GptPart, TokenBatch};
pub use sample::sample;
