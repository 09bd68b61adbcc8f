//! Trains a convolutional net to read handwritten digits.

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
use examples::trainers::digits::{self, DigitBatcher, DigitNet, split};

type Arguments = OnRanks<digits::Arguments>;

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

    let (train, valid) = split(training.seed);
    let loader_train = DataLoaderBuilder::new(DigitBatcher)
        .batch_size(training.batch)
        .shuffle(training.seed)
        .build(train);
    let loader_valid = DataLoaderBuilder::new(DigitBatcher)
        .batch_size(training.batch)
        .build(valid);

    let learner = Learner::new(
        DigitNet::new(arguments.norm, &device.autodiff()),
        AdamConfig::new().init(),
        training.lr,
    );
    let strategy = Distributed::new(arguments.ranks).prepare(DigitNet::over);
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
