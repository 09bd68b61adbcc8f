//! Random numbers that depend neither on the number of ranks nor on the order of computation.
//!
//! | file | what |
//! |---|---|
//! | `random_position.rs` | where in training a number is drawn |
//! | `random_stream.rs` | numbers by position and element |
//! | `element_range.rs` | which elements of a whole array a rank holds |

mod element_range;
mod random_position;
mod random_stream;

pub use element_range::ElementRange;
pub use random_position::RandomPosition;
pub use random_stream::RandomStream;
