//! ZeRO stages 1 and 2: whole parameters, each rank steps its part of them.
//!
//! | file | what |
//! |---|---|
//! | `sharded_optimizer_config.rs` | the settings |
//! | `sharded_optimizer.rs` | wrapping, and a step from outside |
//! | `given_gradients.rs` | a step with gradients that were computed elsewhere |
//! | `step_pieces.rs` | a step on equal parts of every unit |
//! | `shard_module.rs` | a rank's pieces as the optimizer sees them |
//! | `whole_parameters.rs` | a step on parameters that each belong to one rank |
//! | `whole_state.rs` | state and parameters as one device would have them |
//! | `model_values.rs` | from a model's parameters to pieces and back |

mod given_gradients;
mod model_values;
mod shard_module;
#[allow(clippy::module_inception)]
mod sharded_optimizer;
mod sharded_optimizer_config;
mod step_pieces;
mod whole_parameters;
mod whole_state;

pub use sharded_optimizer::ShardedOptimizer;
pub use sharded_optimizer_config::ShardedOptimizerConfig;
