//! [`OnRanks`]: a trainer's command line, and how many ranks.

use std::ops::Deref;

use burn::train::LearnerModel;
use burn_dist::train::{Distributed, GradientReduction};
use burn_zero::{ShardableOptimizer, Zero, ZeroStage};
use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser};

/// A trainer's own arguments, and those of training on many ranks.
#[derive(Debug, Clone, Parser)]
#[command(version, args_override_self = true)]
pub struct OnRanks<A: Args> {
    #[command(flatten)]
    plain: A,
    /// Ranks, as threads of this process; a launcher's number goes before
    #[arg(long, default_value_t = 2, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub ranks: usize,
    /// Add gradients of ranks up, as accumulation does, instead of taking their mean
    #[arg(long)]
    sum: bool,
    /// ZeRO's stage: 1 splits the optimizer's state, 2 also gradients, 3 also parameters
    #[arg(long = "zero", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=3))]
    stage: u8,
}

impl<A: Args> OnRanks<A> {
    /// A strategy with what the command line says of it, for the learner's optimizer.
    pub fn options<M: LearnerModel>(
        &self,
        strategy: Distributed<M>,
        optimizer: impl Into<ShardableOptimizer>,
    ) -> Distributed<M> {
        let stage = match self.stage {
            0 => ZeroStage::Nothing,
            1 => ZeroStage::OptimizerState,
            2 => ZeroStage::Gradients,
            _ => ZeroStage::Parameters,
        };
        let reduction = match self.sum {
            true => GradientReduction::Sum,
            false => GradientReduction::Mean,
        };
        let strategy = strategy.gradient_reduction(reduction);
        strategy.parallelism(Zero::new(stage, optimizer))
    }
}

impl<A: Args> Deref for OnRanks<A> {
    type Target = A;

    fn deref(&self) -> &A {
        &self.plain
    }
}
