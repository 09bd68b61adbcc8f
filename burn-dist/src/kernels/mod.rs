//! Single passes over arrays, in plain Rust that the compiler makes vector instructions of; no tensors.
//!
//! Each has a twin of tensor operations and, for CubeCL's runtimes, one as a CubeCL kernel, in
//! [`backend`](crate::backend).
//!
//! | file | what |
//! |---|---|
//! | `kernel_float.rs` | what is stored, and what it is computed in |
//! | `f16_arrays.rs` | arrays of f16 to f32 and back |
//! | `vectors.rs` | loops compiled for the vectors that the processor has |
//! | `new_array.rs` | memory for results |
//! | `adamw_step.rs`, `sgd_step.rs` | a step of AdamW, of gradient descent with momentum |
//! | `scaled_copy.rs` | packing and unpacking: another element type, times a number |
//! | `rank_sum.rs` | staged collectives: arrays of ranks added up in their order |
//! | `softmax_merge.rs` | attention over parts of the keys, put together |
//! | `exact_sum.rs`, `square_lanes.rs`, `square_sum.rs` | a norm that does not depend on the order of its terms |
//! | `row_losses.rs` | cross entropy of the columns that a rank has, and its gradient |

mod adamw_step;
mod exact_sum;
mod f16_arrays;
mod kernel_float;
mod new_array;
mod rank_sum;
mod row_losses;
mod scaled_copy;
mod sgd_step;
mod softmax_merge;
mod square_lanes;
mod square_sum;
mod vectors;

pub use adamw_step::{AdamWScalars, AdamWStep};
pub use exact_sum::ExactSum;
pub use kernel_float::{KernelFloat, WideFloat};
pub use new_array::{in_large_pages, new_array};
pub use rank_sum::rank_sum;
pub use row_losses::{ROW_PARTS, ROW_SLOPES, row_parts, row_slopes};
pub use scaled_copy::{plain_copy, scaled_add, scaled_copy, scaled_vec};
pub use sgd_step::{SgdScalars, SgdStep};
pub use softmax_merge::softmax_merge;
pub use square_sum::SquareSum;
