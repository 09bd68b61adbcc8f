//! Images of handwritten digits, 8x8 pixels each, and a convolutional net that reads them.

mod arguments;
mod batcher;
mod data;
mod digit_batch;
mod map_norm;
mod model;
mod norm;

pub use arguments::Arguments;
pub use batcher::DigitBatcher;
pub use data::{Digit, split};
pub use digit_batch::DigitBatch;
pub use model::DigitNet;
pub use norm::Norm;
