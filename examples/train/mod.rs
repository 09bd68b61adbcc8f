//! The trainer behind `train_gpt`.

mod arguments;
mod progress;
mod report;
mod trainer;

pub use arguments::Arguments;
pub use report::{BytesPerStep, Report};
pub use trainer::{prepare, train};
