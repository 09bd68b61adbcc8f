//! [`DigitNet`]: two convolutions, two linear layers.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d, Relu};
use burn::tensor::{Device, Tensor};
use burn::train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep};
use burn_dist::ProcessGroup;

use super::map_norm::MapNorm;
use super::{DigitBatch, Norm};

const CHANNELS: [usize; 2] = [16, 32];
const HIDDEN: usize = 64;
const DIGITS: usize = 10;

/// A convolutional net for images of 8x8 pixels.
#[derive(Module, Debug)]
pub struct DigitNet {
    conv1: Conv2d,
    norm1: Option<MapNorm>,
    conv2: Conv2d,
    norm2: Option<MapNorm>,
    pool: MaxPool2d,
    hidden: Linear,
    output: Linear,
    activation: Relu,
}

impl DigitNet {
    /// A net with random parameters.
    pub fn new(norm: Norm, device: &Device) -> Self {
        let [first, second] = CHANNELS;
        let conv = |channels| {
            Conv2dConfig::new(channels, [3, 3])
                .with_padding(PaddingConfig2d::Same)
                .init(device)
        };
        let norm = |channels| MapNorm::new(norm, channels, device);
        Self {
            conv1: conv([1, first]),
            norm1: norm(first),
            conv2: conv([first, second]),
            norm2: norm(second),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            hidden: LinearConfig::new(second * 4 * 4, HIDDEN).init(device),
            output: LinearConfig::new(HIDDEN, DIGITS).init(device),
            activation: Relu::new(),
        }
    }

    /// Normalizes together with the ranks of a group, if its norms are of that kind.
    pub fn over(mut self, group: &ProcessGroup) -> Self {
        self.norm1 = self.norm1.map(|norm| norm.over(group));
        self.norm2 = self.norm2.map(|norm| norm.over(group));
        self
    }

    /// Scores of the ten digits, `[B, 10]`, for images `[B, 1, 8, 8]`.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let maps = self.conv1.forward(images);
        let maps = self.activation.forward(normalize(&self.norm1, maps));
        let maps = self.conv2.forward(maps);
        let maps = self.activation.forward(normalize(&self.norm2, maps));
        let features = self.pool.forward(maps).flatten(1, 3);
        let hidden = self.activation.forward(self.hidden.forward(features));
        self.output.forward(hidden)
    }

    fn classify(&self, batch: DigitBatch) -> ClassificationOutput {
        let scores = self.forward(batch.images);
        let loss = CrossEntropyLossConfig::new()
            .init(&scores.device())
            .forward(scores.clone(), batch.labels.clone());
        ClassificationOutput::new(loss, scores, batch.labels)
    }
}

fn normalize(norm: &Option<MapNorm>, maps: Tensor<4>) -> Tensor<4> {
    match norm {
        Some(norm) => norm.forward(maps),
        None => maps,
    }
}

impl TrainStep for DigitNet {
    type Input = DigitBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: DigitBatch) -> TrainOutput<ClassificationOutput> {
        let output = self.classify(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for DigitNet {
    type Input = DigitBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: DigitBatch) -> ClassificationOutput {
        self.classify(batch)
    }
}
