//! ZeRO in Burn's own trainer.
//!
//! | file | what |
//! |---|---|
//! | `zero.rs` | what the strategy's line names |
//! | `sharded_learner.rs` | stages 1 and 2 |
//! | `fully_sharded_learner.rs` | stage 3 |
//! | `learner_content.rs` | what the trainer's learner holds meanwhile |
//! | `untouched_record.rs` | parameters that take no memory |
//! | `optimizer_probe.rs` | whether an optimizer is the learner's |

mod fully_sharded_learner;
mod learner_content;
mod optimizer_probe;
mod sharded_learner;
#[cfg(feature = "flex")]
mod untouched_record;
mod zero;

pub use zero::Zero;
