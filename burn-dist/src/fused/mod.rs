//! Optimizers and functions that are one pass over their arrays where the backend has the kernel.
//!
//! | file | what |
//! |---|---|
//! | `fused_adamw.rs` | Burn's AdamW in one pass |
//! | `fused_sgd.rs`, `fused_sgd_state.rs` | Burn's gradient descent with momentum in one pass |
//! | `gradient_scale.rs` | what a fused optimizer multiplies gradients by |

mod fused_adamw;
mod fused_sgd;
mod fused_sgd_state;
mod gradient_scale;

pub use fused_adamw::FusedAdamW;
pub use fused_sgd::FusedSgd;
pub use fused_sgd_state::FusedSgdState;
pub use gradient_scale::GradientScale;
