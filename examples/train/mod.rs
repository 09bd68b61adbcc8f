//! The trainer behind `train_gpt`.

mod arguments;
mod grouping;
mod language_model;
mod progress;
mod rank_groups;
mod report;
mod strategy;
mod traffic_formula;
mod trainer;

pub use arguments::{AlgorithmName, Arguments, DTypeName};
pub use grouping::Grouping;
pub use report::{BytesPerStep, Report};
pub use trainer::{prepare, train};
