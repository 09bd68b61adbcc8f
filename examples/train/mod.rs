//! The trainer behind `train_gpt`.

mod arguments;
mod batches;
mod checks;
mod dealt_part;
mod device_name;
mod grouping;
mod language_model;
mod piped;
mod progress;
mod rank_groups;
mod report;
mod strategy;
mod tracing;
mod traffic_formula;
mod trainer;
mod training;
mod unpiped;

pub use arguments::{AlgorithmName, Arguments, DTypeName};
pub use device_name::DeviceName;
pub use grouping::Grouping;
pub use report::{BytesPerStep, Report};
pub use trainer::{prepare, train};
