//! ZeRO for Burn: optimizer state, gradients and parameters sharded over data-parallel ranks.
//!
//! Data parallelism keeps a whole replica on every rank. The three stages of ZeRO
//! (arXiv 1910.02054) remove that redundancy one kind of state at a time, with the same numbers:
//!
//! | stage | split over the ranks | sent per rank and step, in elements, for Ψ parameters |
//! |---|---|---|
//! | 1 | optimizer state | 2Ψ(n-1)/n |
//! | 2 | and gradients | 2Ψ(n-1)/n |
//! | 3 | and parameters | 3Ψ(n-1)/n |
//!
//! | file | what |
//! |---|---|
//! | `shard_layout.rs` | which rank holds which elements; pure |
//! | `state_bytes.rs` | what each stage keeps on a rank, by formula; pure |
//! | `element_wise.rs`, `shardable_optimizer.rs` | which optimizers may be cut anywhere |
//! | `sharded_optimizer/` | stages 1 and 2 |
//! | `fully_shard/` | stage 3 |
//! | `optimizer_state/`, `whole_values.rs` | state and parameters as one device would have them |
//! | `train/` | for Burn's trainer (feature `train`) |
//! | `norm_sum.rs`, `clip_grad_norm.rs` | one norm over all gradients, the same in every layout |
//! | `model_parallel.rs` | whose parts of the model count for a norm |
//! | `loss_scale.rs` | for models in f16 |
#![warn(missing_docs)]

mod clip_grad_norm;
mod element_wise;
mod fully_shard;
mod loss_scale;
mod model_parallel;
mod norm_sum;
mod optimizer_state;
mod shard_layout;
mod shardable_optimizer;
mod sharded_optimizer;
mod state_bytes;
#[cfg(feature = "train")]
mod train;
mod whole_values;

pub use clip_grad_norm::{clip_grad_norm, clip_grad_norm_over};
pub use element_wise::ElementWise;
pub use fully_shard::{FullyShard, FullySharded, MixedPrecisionPolicy, ShardUnit, UnitPolicy};
pub use loss_scale::LossScale;
pub use model_parallel::ModelParallel;
pub use norm_sum::NormSum;
pub use shard_layout::{ShardLayout, ShardPiece};
pub use shardable_optimizer::ShardableOptimizer;
pub use sharded_optimizer::{ShardedOptimizer, ShardedOptimizerConfig};
pub use state_bytes::{StateBytes, ZeroStage};
#[cfg(feature = "train")]
pub use train::Zero;
