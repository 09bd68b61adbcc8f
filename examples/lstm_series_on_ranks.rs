//! Trains an LSTM to forecast a noisy series of waves.

use std::error::Error;
use std::process::ExitCode;

use burn::data::dataloader::DataLoaderBuilder;
use burn::optim::AdamConfig;
use burn::tensor::Device;
use burn::train::metric::LossMetric;
use burn::train::{Learner, SupervisedTraining};
use burn_dist::train::Distributed;
use clap::Parser;
use examples::trainers::OnRanks;
use examples::trainers::lstm_series::{self, ForecastError, Forecaster, WindowBatcher, split};

type Arguments = OnRanks<lstm_series::Arguments>;

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
    let loader_train = DataLoaderBuilder::new(WindowBatcher)
        .batch_size(training.batch)
        .shuffle(training.seed)
        .build(train);
    let loader_valid = DataLoaderBuilder::new(WindowBatcher)
        .batch_size(training.batch)
        .build(valid);

    let learner = Learner::new(
        Forecaster::new(&device.autodiff()),
        AdamConfig::new().init(),
        training.lr,
    );
    let strategy = Distributed::new(arguments.ranks);
    let artifacts = training.artifacts()?;
    let result = SupervisedTraining::new(artifacts.path(), loader_train, loader_valid.clone())
        .metrics((LossMetric::new(),))
        .with_default_checkpointers()
        .num_epochs(training.epochs)
        .grads_accumulation(training.accumulate)
        .summary()
        .with_training_strategy(arguments.options(strategy, AdamConfig::new()).into())
        .launch(learner);
    if let Some(error) = result.error {
        return Err(error.into());
    }

    let error = ForecastError::measure(&result.model, &*loader_valid)?;
    println!("validation error: {error}");
    Ok(())
}
