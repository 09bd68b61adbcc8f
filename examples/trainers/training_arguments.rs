//! [`TrainingArguments`]: the part of a command line that all trainers share.

use std::io;
use std::path::PathBuf;

use clap::Args;
use clap::builder::RangedU64ValueParser;

use super::Artifacts;

/// How long, on how much and from where to train.
#[derive(Debug, Clone, Args)]
pub struct TrainingArguments {
    /// Passes over the training items
    #[arg(long, default_value_t = 10, value_parser = at_least_one())]
    pub epochs: usize,
    /// Items per batch
    #[arg(long, default_value_t = 32, value_parser = at_least_one())]
    pub batch: usize,
    /// Batches whose gradients are added for one optimizer step
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = at_least_one())]
    pub accumulate: usize,
    /// Learning rate of Adam
    #[arg(long, default_value_t = 2e-3, value_parser = learning_rate)]
    pub lr: f64,
    /// Seed of parameters, of the split into training and validation, and of the order of items
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// Keep logs and checkpoints in this folder; by default they go to a temporary one
    #[arg(long, value_name = "DIR")]
    pub artifacts: Option<PathBuf>,
}

impl TrainingArguments {
    /// The folder for logs and checkpoints; a temporary one is deleted with the value.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn artifacts(&self) -> io::Result<Artifacts> {
        Artifacts::new(self.artifacts.as_deref())
    }
}

fn at_least_one() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

fn learning_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        Ok(_) => Err("not a positive number".into()),
        Err(error) => Err(error.to_string()),
    }
}
