//! [`Forecaster`]: Burn's LSTM and a linear layer.

use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig, Lstm, LstmConfig};
use burn::tensor::{Device, Tensor};
use burn::train::{InferenceStep, RegressionOutput, TrainOutput, TrainStep};

use super::WindowBatch;

const HIDDEN: usize = 32;

/// An LSTM whose last hidden state gives the next value.
#[derive(Module, Debug)]
pub struct Forecaster {
    lstm: Lstm,
    output: Linear,
}

impl Forecaster {
    /// A forecaster with random parameters.
    pub fn new(device: &Device) -> Self {
        Self {
            lstm: LstmConfig::new(1, HIDDEN, true).init(device),
            output: LinearConfig::new(HIDDEN, 1).init(device),
        }
    }

    /// The next values, `[B, 1]`, for windows `[B, T, 1]`.
    pub fn forward(&self, past: Tensor<3>) -> Tensor<2> {
        let (_, state) = self.lstm.forward(past, None);
        self.output.forward(state.hidden)
    }

    fn forecast(&self, batch: WindowBatch) -> RegressionOutput {
        let next = self.forward(batch.past);
        let loss = MseLoss::new().forward(next.clone(), batch.next.clone(), Reduction::Mean);
        RegressionOutput::new(loss, next, batch.next)
    }
}

impl TrainStep for Forecaster {
    type Input = WindowBatch;
    type Output = RegressionOutput;

    fn step(&self, batch: WindowBatch) -> TrainOutput<RegressionOutput> {
        let output = self.forecast(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Forecaster {
    type Input = WindowBatch;
    type Output = RegressionOutput;

    fn step(&self, batch: WindowBatch) -> RegressionOutput {
        self.forecast(batch)
    }
}
