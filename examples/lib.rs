//! What the example programs share: a GPT of Burn's own layers, text, and a trainer.
#![warn(missing_docs)]

pub mod gpt;
pub mod text;
pub mod train;
pub mod workload;
