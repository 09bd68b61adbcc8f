//! Burn's own trainer on many ranks: `burn::train::SupervisedTraining` keeps its model, data, metrics,
//! checkpoints and dashboard, and gets one line more (feature `train`).
//!
//! | file | what |
//! |---|---|
//! | `distributed.rs` | the strategy that the line names |
//! | `batch_split.rs`, `last_round.rs`, `gradient_reduction.rs` | its choices |
//! | `learning_strategy.rs`, `on_first_rank.rs` | from Burn's trainer to ranks and back |
//! | `rank_training.rs` | the loop of one rank |
//! | `first_rank.rs` | what only one rank has: dashboard, metrics, checkpoints |
//! | `round.rs` | what ranks tell each other before each batch |
//! | `batch_source.rs` | which rank gets which batch |
//! | `rank_output.rs` | outputs that travel to the metrics |
//! | `parallelism.rs`, `rank_learner.rs` | what ranks share of a model, and how a rank's gradients become a step |
//! | `replica.rs` | the default: all of it on every rank |
//! | `optimizer_state.rs` | what a learner's optimizer has of earlier steps |

mod batch_source;
mod batch_split;
mod distributed;
mod first_rank;
mod gradient_reduction;
mod last_round;
mod learning_strategy;
mod on_first_rank;
mod optimizer_state;
mod parallelism;
mod rank_learner;
mod rank_output;
mod rank_training;
mod replica;
mod round;

pub use batch_split::BatchSplit;
pub use distributed::Distributed;
pub use gradient_reduction::GradientReduction;
pub use last_round::LastRound;
pub use parallelism::{Parallelism, RankStart, StepSettings};
pub use rank_learner::{Pass, RankLearner};
pub use rank_output::RankOutput;
pub use replica::Replicas;
