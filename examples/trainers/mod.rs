//! Plain Burn trainers: `digits`, `text_classification` and `lstm_series`.
//!
//! Each folder holds what a program needs besides its `main`: arguments, data and model.

mod accuracy;
mod artifacts;
pub mod digits;
pub mod lstm_series;
pub mod text_classification;
mod training_arguments;

pub use accuracy::Accuracy;
pub use artifacts::Artifacts;
pub use training_arguments::TrainingArguments;
