//! Plain Burn trainers, `digits`, `text_classification` and `lstm_series`, and the same on many ranks.
//!
//! Each folder holds what a program needs besides its `main`: arguments, data and model.

mod accuracy;
mod artifacts;
pub mod digits;
pub mod lstm_series;
mod on_ranks;
pub mod text_classification;
mod training_arguments;

pub use accuracy::Accuracy;
pub use artifacts::Artifacts;
pub use on_ranks::OnRanks;
pub use training_arguments::TrainingArguments;
