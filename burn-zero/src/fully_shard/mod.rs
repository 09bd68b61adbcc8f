//! ZeRO stage 3: parameters split over the ranks, gathered where they are used.
//!
//! | file | what |
//! |---|---|
//! | `fully_shard.rs` | the settings, and wrapping |
//! | `fully_sharded.rs` | what the training loop holds: gradients, accumulation, errors |
//! | `whole_state.rs` | state and parameters as one device would have them |
//! | `unit_policy.rs` | which parameters travel together; pure |
//! | `mixed_precision_policy.rs` | the element types of compute, sums and master weights |
//! | `attach.rs` | takes a model's parameters apart |
//! | `sharded_parameter.rs` | how a parameter is a shard and acts whole |
//! | `parameter_version.rs` | the values of all parameters between two steps, and what is gathered of them |
//! | `graph_ties.rs` | marks, leaves and shared uses: what ties parameters to autodiff graphs |
//! | `gather_order.rs` | which unit comes next |
//! | `shard_plan.rs` | where each parameter lies, and in which types; pure |
//! | `shard_context.rs` | plan, ranks and counts of one wrapped model |
//! | `shard_groups.rs` | its ranks |
//! | `gradient_sums.rs`, `gradient_shards.rs` | gradients in, this rank's part of their means out |

mod attach;
#[allow(clippy::module_inception)]
mod fully_shard;
mod fully_sharded;
mod gather_order;
mod gradient_shards;
mod gradient_sums;
mod graph_ties;
mod mixed_precision_policy;
mod parameter_version;
mod shard_context;
mod shard_groups;
mod shard_plan;
mod sharded_parameter;
mod unit_policy;
mod whole_state;

pub use fully_shard::FullyShard;
pub use fully_sharded::FullySharded;
pub use mixed_precision_policy::MixedPrecisionPolicy;
pub use unit_policy::{ShardUnit, UnitPolicy};
