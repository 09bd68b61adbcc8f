//! [`Arguments`]: the command line of `text_classification`.

use std::path::PathBuf;

use clap::Parser;

use crate::trainers::TrainingArguments;

/// Train a transformer to tell snippets of Rust, Markdown and TOML apart.
#[derive(Debug, Clone, Parser)]
#[command(version, args_override_self = true)]
pub struct Arguments {
    /// How long, on how much and from where to train
    #[command(flatten)]
    pub training: TrainingArguments,
    /// Share of activations that are dropped in training
    #[arg(long, default_value_t = 0.0, value_parser = share)]
    pub dropout: f64,
    /// A folder with files of all three languages; by default packages in Cargo's registry folder
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..1.0).contains(&share) => Ok(share),
        Ok(_) => Err("not from 0 to below 1".into()),
        Err(error) => Err(error.to_string()),
    }
}
