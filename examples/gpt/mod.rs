//! A GPT put together from Burn's own layers, in plain Burn code, and the same with its layers split,
//! whole or in the parts that a pipeline deals out.

mod deferred_block;
mod model;
mod parallel_gpt;
mod parallel_parts;
mod parts;
mod sample;

pub use deferred_block::DeferredBlock;
pub use model::{Block, Gpt, GptConfig};
pub use parallel_gpt::{ParallelBlock, ParallelGpt};
pub use parallel_parts::{ParallelEmbedding, ParallelGptPart, ParallelHead};
pub use parts::{GptEmbedding, GptHead, GptPart, TokenBatch};
pub use sample::sample;
