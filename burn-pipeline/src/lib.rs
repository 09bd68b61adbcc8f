//! Pipeline parallelism for Burn: consecutive blocks of a model on consecutive ranks, a batch cut in
//! micro-batches that keep every stage busy.
//!
//! A schedule is text that is made, checked, completed, and then simulated or run:
//!
//! ```
//! use burn_pipeline::{Schedule, StageCosts, lower, simulate};
//!
//! let plan = Schedule::OneFOneB.plan(2, 3)?;
//! assert_eq!(plan.to_string(), "\
//! rank 0: 0F0 0F1 .   .   0B0 =   0F2 0B1 =   .   0B2 =  \n\
//! rank 1: .   1F0 1B0 =   1F1 1B1 =   1F2 1B2 =  \n");
//! let step = simulate(&plan, &StageCosts::units(2))?;
//! assert_eq!((step.makespan, step.peak_live), (12.0, vec![2, 1]));
//! let lowered = lower(&plan)?;
//! assert!(lowered.actions().any(|action| action.to_string() == "0SEND_F0"));
//! # Ok::<(), burn_dist::DistError>(())
//! ```
//!
//! | file | what |
//! |---|---|
//! | `action.rs`, `schedule_plan.rs` | what a rank does, and all of it, as text; pure |
//! | `schedules/` | GPipe, 1F1B, interleaved, ZB-H1; pure |
//! | `validate.rs`, `lower.rs`, `simulate.rs` | whether a plan runs, what it sends, how long it takes; pure |
//! | `partition.rs`, `micro_batches.rs` | which blocks on which stage, which items in which micro-batch; pure |
//! | `measure_blocks.rs` | how long each block takes |
//! | `pipeline_stage.rs`, `activation.rs` | what a model gives to be run in stages |
//! | `pipeline_block.rs`, `block_stage.rs` | a model that is a list of blocks |
//! | `pipeline_links.rs`, `link.rs` | how neighbours reach each other |
//! | `pipeline_runtime.rs`, `step_run.rs`, `stage_passes.rs`, `kept.rs` | one loop over the actions |
//! | `pipeline_step.rs` | what a step gives |
//! | `tied_parameter.rs` | one parameter that two stages use |
//! | `pictures/` | charts and traces of a step |
//! | `gradient_sum.rs` | gradients in the order of micro-batches |
//! | `deferred_linear.rs`, `deferred_attention.rs` | layers whose backward pass can be split |
#![warn(missing_docs)]

mod action;
mod activation;
mod block_stage;
mod deferred_attention;
mod deferred_linear;
mod gradient_sum;
mod kept;
mod link;
mod lower;
mod measure_blocks;
mod micro_batches;
mod partition;
pub mod pictures;
mod pipeline_block;
mod pipeline_links;
mod pipeline_runtime;
mod pipeline_stage;
mod pipeline_step;
mod recompute;
mod schedule_plan;
mod schedules;
mod simulate;
mod stage_passes;
mod step_run;
mod tied_parameter;
mod validate;

pub use action::{Action, ActionKind};
pub use activation::Activation;
pub use block_stage::BlockStage;
pub use deferred_attention::DeferredAttention;
pub use deferred_linear::DeferredLinear;
pub use lower::lower;
pub use measure_blocks::measure_blocks;
pub use micro_batches::MicroBatches;
pub use partition::partition;
pub use pipeline_block::PipelineBlock;
pub use pipeline_links::PipelineLinks;
pub use pipeline_runtime::PipelineRuntime;
pub use pipeline_stage::PipelineStage;
pub use pipeline_step::{ActionSpan, PipelineStep};
pub use recompute::Recompute;
pub use schedule_plan::SchedulePlan;
pub use schedules::{PipelineShape, Schedule};
pub use simulate::{SimulatedStep, StageCosts, TimeSpan, simulate};
pub use tied_parameter::TiedParameter;
pub use validate::validate;
