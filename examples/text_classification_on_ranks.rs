//! Trains a transformer to tell snippets of Rust, Markdown and TOML apart.

use std::error::Error;
use std::process::ExitCode;

use burn::data::dataloader::DataLoaderBuilder;
use burn::optim::AdamConfig;
use burn::tensor::Device;
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::{Learner, SupervisedTraining};
use burn_dist::train::Distributed;
use clap::Parser;
use examples::trainers::Accuracy;
use examples::trainers::OnRanks;
use examples::trainers::text_classification::{self, SnippetBatcher, SnippetClassifier, split};

type Arguments = OnRanks<text_classification::Arguments>;

fn main() -> ExitCode {
    match train(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn train(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let training = &arguments.training;
    let device = Device::default();
    device.seed(training.seed);

    let (train, valid) = split(arguments.data.as_deref(), training.seed)?;
    let loader_train = DataLoaderBuilder::new(SnippetBatcher)
        .batch_size(training.batch)
        .shuffle(training.seed)
        .build(train);
    let loader_valid = DataLoaderBuilder::new(SnippetBatcher)
        .batch_size(training.batch)
        .build(valid);

    let learner = Learner::new(
        SnippetClassifier::new(arguments.dropout, &device.autodiff()),
        AdamConfig::new().init(),
        training.lr,
    );
    let strategy = Distributed::new(arguments.ranks);
    let artifacts = training.artifacts()?;
    let result = SupervisedTraining::new(artifacts.path(), loader_train, loader_valid.clone())
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .with_default_checkpointers()
        .num_epochs(training.epochs)
        .grads_accumulation(training.accumulate)
        .summary()
        .with_training_strategy(arguments.options(strategy, AdamConfig::new()).into())
        .launch(learner);
    if let Some(error) = result.error {
        return Err(error.into());
    }

    let accuracy = Accuracy::measure(&result.model, &*loader_valid)?;
    println!("validation accuracy: {accuracy}");
    Ok(())
}
