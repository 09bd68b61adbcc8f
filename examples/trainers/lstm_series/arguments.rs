//! [`Arguments`]: the command line of `lstm_series`.

use clap::Parser;

use crate::trainers::TrainingArguments;

/// Train an LSTM to forecast a noisy series of waves.
#[derive(Debug, Clone, Parser)]
#[command(version, args_override_self = true)]
pub struct Arguments {
    /// How long, on how much and from where to train
    #[command(flatten)]
    pub training: TrainingArguments,
}
