//! Data parallelism: every rank holds the whole model and sees its own part of the batch.
//!
//! | file | what |
//! |---|---|
//! | `data_parallel.rs` | the strategy: wrap, sync, no_sync, join |
//! | `data_parallel_config.rs` | how it works |
//! | `naive_data_parallel.rs` | its plain twin |
//! | `bucket_plan.rs` | which gradient travels in which bucket; pure |
//! | `gradient_bucket.rs` | one bucket: add, launch, wait |
//! | `reducer.rs` | gradients in, buckets out, in index order |
//! | `synchronized.rs` | the hook on a parameter |
//! | `parameter_spec.rs`, `replica.rs` | the same model on every rank |
//! | `given_gradients.rs` | gradients that were computed elsewhere |
//! | `gradient_norm.rs` | their norm, and a factor for all |
//! | `gradient_event.rs` | what happened in a step, in order |
//! | `rank_order_accumulator.rs` | what N ranks compute, on one |

mod bucket_plan;
mod data_parallel;
mod data_parallel_config;
mod given_gradients;
mod gradient_bucket;
mod gradient_event;
mod gradient_norm;
mod naive_data_parallel;
mod parameter_spec;
mod rank_order_accumulator;
mod reducer;
mod replica;
mod synchronized;

pub use bucket_plan::{BucketLayout, BucketPlan, BucketSizes, BucketSlot};
pub use data_parallel::{BucketShard, DataParallel, JoinTurn};
pub use data_parallel_config::DataParallelConfig;
pub use gradient_event::GradientEvent;
pub use gradient_norm::{clip_factor, scale_gradients, squares_of_gradients};
pub use naive_data_parallel::NaiveDataParallel;
pub use parameter_spec::{ParameterSpec, ParameterTable};
pub use rank_order_accumulator::{RankOrderAccumulator, mean_gradients};
pub use replica::{broadcast_buffers, broadcast_untrained, parameter_hash};
