//! Optimizers and functions that are one pass over their arrays where the backend has the kernel.
//!
//! | file | what |
//! |---|---|
//! | `fused_adamw.rs` | Burn's AdamW in one pass |
//! | `gradient_scale.rs` | what a fused optimizer multiplies gradients by |

mod fused_adamw;
mod gradient_scale;

pub use fused_adamw::FusedAdamW;
pub use gradient_scale::GradientScale;
