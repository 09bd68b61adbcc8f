//! What the example programs share: a GPT of Burn's own layers, text, a trainer of our own, and plain Burn
//! trainers.
#![warn(missing_docs)]

pub mod gpt;
pub mod text;
pub mod train;
pub mod trainers;
pub mod workload;
