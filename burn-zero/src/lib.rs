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
//! | `sharded_optimizer.rs` | stages 1 and 2 |
//! | `fully_shard/` | stage 3 |
//! | `whole_parameters.rs` | parameters that each belong to one rank |
//! | `shard_module.rs`, `model_values.rs` | what the optimizer sees, and the way back to the model |
#![warn(missing_docs)]

mod element_wise;
mod fully_shard;
mod model_values;
mod shard_layout;
mod shard_module;
mod shardable_optimizer;
mod sharded_optimizer;
mod state_bytes;
mod whole_parameters;

pub use element_wise::ElementWise;
pub use fully_shard::{FullyShard, FullySharded, MixedPrecisionPolicy, ShardUnit, UnitPolicy};
pub use shard_layout::{ShardLayout, ShardPiece};
pub use shardable_optimizer::ShardableOptimizer;
pub use sharded_optimizer::{ShardedOptimizer, ShardedOptimizerConfig};
pub use state_bytes::{StateBytes, ZeroStage};
