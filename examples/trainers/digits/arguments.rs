//! [`Arguments`]: the command line of `digits`.

use clap::Parser;

use super::Norm;
use crate::trainers::TrainingArguments;

/// Train a convolutional net to read handwritten digits.
#[derive(Debug, Clone, Parser)]
#[command(version, args_override_self = true)]
pub struct Arguments {
    /// How long, on how much and from where to train
    #[command(flatten)]
    pub training: TrainingArguments,
    /// What stands between a convolution and its activation
    #[arg(long, value_enum, default_value_t = Norm::Batch)]
    pub norm: Norm,
}
