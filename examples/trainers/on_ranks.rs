//! [`OnRanks`]: a trainer's command line, and how many ranks.

use std::ops::Deref;

use burn_dist::train::GradientReduction;
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
    pub sum: bool,
}

impl<A: Args> OnRanks<A> {
    /// Mean or sum.
    pub fn reduction(&self) -> GradientReduction {
        match self.sum {
            true => GradientReduction::Sum,
            false => GradientReduction::Mean,
        }
    }
}

impl<A: Args> Deref for OnRanks<A> {
    type Target = A;

    fn deref(&self) -> &A {
        &self.plain
    }
}
