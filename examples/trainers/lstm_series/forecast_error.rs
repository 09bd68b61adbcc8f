//! [`ForecastError`]: how far forecasts are off.

use std::fmt;

use burn::data::dataloader::DataLoader;
use burn::data::dataset::DatasetError;
use burn::tensor::{Tensor, s};
use burn::train::InferenceStep;

use super::{Forecaster, WindowBatch};

/// Root mean square errors, in units of the series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ForecastError {
    /// Of the model.
    pub model: f64,
    /// Of repeating the last value.
    pub last_value: f64,
}

impl ForecastError {
    /// Runs `model` over all windows of `loader`; NaN without windows.
    ///
    /// # Errors
    /// If a window cannot be read.
    pub fn measure(
        model: &Forecaster,
        loader: &dyn DataLoader<WindowBatch>,
    ) -> Result<Self, DatasetError> {
        let (mut forecast, mut repeated, mut windows) = (0.0, 0.0, 0);
        for batch in loader.iter() {
            let batch = batch?;
            let last = batch.past.clone().slice(s![.., -1, ..]).squeeze_dim(2);
            repeated += squares(last - batch.next.clone());
            let output = InferenceStep::step(model, batch);
            windows += output.targets.dims()[0];
            forecast += squares(output.output - output.targets);
        }
        let root_mean = |sum: f64| (sum / windows as f64).sqrt();
        Ok(Self {
            model: root_mean(forecast),
            last_value: root_mean(repeated),
        })
    }
}

fn squares(differences: Tensor<2>) -> f64 {
    differences.powi_scalar(2).sum().into_scalar()
}

impl fmt::Display for ForecastError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, last_value } = self;
        write!(
            formatter,
            "{model:.4} (repeating the last value: {last_value:.4})"
        )
    }
}
