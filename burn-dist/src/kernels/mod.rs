//! Single passes over arrays, in plain Rust that the compiler makes vector instructions of; no tensors.
//!
//! Each has a twin of tensor operations and, for CubeCL's runtimes, one as a CubeCL kernel, in
//! [`backend`](crate::backend).
//!
//! | file | what |
//! |---|---|
//! | `kernel_float.rs` | what is stored, and what it is computed in |
//! | `vectors.rs` | loops compiled for the vectors that the processor has |
//! | `adamw_step.rs` | a step of AdamW |
//! | `row_losses.rs` | cross entropy of the columns that a rank has, and its gradient |

mod adamw_step;
mod kernel_float;
mod row_losses;
mod vectors;

pub use adamw_step::{AdamWScalars, AdamWStep};
pub use kernel_float::{KernelFloat, WideFloat};
pub use row_losses::{ROW_PARTS, ROW_SLOPES, row_parts, row_slopes};
