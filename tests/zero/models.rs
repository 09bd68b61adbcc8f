//! Models of Burn's own layers that know nothing of ranks.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{
    BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, Linear, LinearConfig, Lstm, LstmConfig,
};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};

/// A model with a loss on numbered items.
pub(crate) trait Toy: Module {
    fn init(device: &Device) -> Self;
    fn loss(&self, item: usize, device: &Device) -> Tensor<1>;
}

pub(crate) fn values(len: usize, seed: usize) -> Vec<f32> {
    (0..len)
        .map(|i| (((i + 1) * (seed + 3) * 2_654_435_761) % 1000) as f32 / 1000.0 - 0.5)
        .collect()
}

pub(crate) fn fill<const D: usize>(shape: [usize; D], seed: usize, device: &Device) -> Tensor<D> {
    let values = values(shape.iter().product(), seed);
    Tensor::from_data(TensorData::new(values, shape), device)
}

#[derive(Module, Debug)]
pub(crate) struct Encoder {
    encoder: TransformerEncoder,
}

impl Toy for Encoder {
    fn init(device: &Device) -> Self {
        let config = TransformerEncoderConfig::new(8, 20, 2, 2).with_dropout(0.0);
        Self {
            encoder: config.init(device),
        }
    }

    fn loss(&self, item: usize, device: &Device) -> Tensor<1> {
        let input = TransformerEncoderInput::new(fill([2, 5, 8], item, device));
        let output = self.encoder.forward(input);
        (output - fill([2, 5, 8], item + 500, device))
            .square()
            .mean()
    }
}

#[derive(Module, Debug)]
pub(crate) struct Recurrent {
    lstm: Lstm,
    head: Linear,
}

impl Toy for Recurrent {
    fn init(device: &Device) -> Self {
        Self {
            lstm: LstmConfig::new(3, 5, true).init(device),
            head: LinearConfig::new(5, 1).init(device),
        }
    }

    fn loss(&self, item: usize, device: &Device) -> Tensor<1> {
        let (output, _) = self.lstm.forward(fill([2, 6, 3], item, device), None);
        self.head.forward(output).square().mean()
    }
}

#[derive(Module, Debug)]
pub(crate) struct Convolutional {
    conv: Conv2d,
    norm: BatchNorm,
    head: Linear,
}

impl Toy for Convolutional {
    fn init(device: &Device) -> Self {
        Self {
            conv: Conv2dConfig::new([1, 3], [3, 3]).init(device),
            norm: BatchNormConfig::new(3).init(device),
            head: LinearConfig::new(3 * 16, 2).init(device),
        }
    }

    fn loss(&self, item: usize, device: &Device) -> Tensor<1> {
        let x = self.conv.forward(fill([4, 1, 6, 6], item, device));
        let x = relu(self.norm.forward(x));
        self.head.forward(x.reshape([4, 3 * 16])).square().mean()
    }
}

/// One table reads words and scores them.
#[derive(Module, Debug)]
pub(crate) struct Tied {
    words: Embedding,
    middle: Linear,
}

impl Toy for Tied {
    fn init(device: &Device) -> Self {
        Self {
            words: EmbeddingConfig::new(11, 6).init(device),
            middle: LinearConfig::new(6, 6).init(device),
        }
    }

    fn loss(&self, item: usize, device: &Device) -> Tensor<1> {
        let tokens: Vec<i32> = (0..6).map(|i| ((item * 7 + i * 5) % 11) as i32).collect();
        let tokens = Tensor::<1, Int>::from_data(TensorData::new(tokens, [6]), device);
        let x = self.words.forward(tokens.reshape([2, 3]));
        let x = relu(self.middle.forward(x)).reshape([6, 6]);
        let scores = self.words.weight.val().transpose();
        x.matmul(scores).square().mean()
    }
}

/// A part that is not trained, a layer that is used twice, and one that no rank uses.
#[derive(Module, Debug)]
pub(crate) struct Partly {
    frozen: Linear,
    twice: Linear,
    idle: Linear,
    tiny: Linear,
}

impl Toy for Partly {
    fn init(device: &Device) -> Self {
        Self {
            frozen: LinearConfig::new(4, 4).init(device).no_grad(),
            twice: LinearConfig::new(4, 4).init(device),
            idle: LinearConfig::new(3, 2).init(device),
            tiny: LinearConfig::new(4, 1).init(device),
        }
    }

    fn loss(&self, item: usize, device: &Device) -> Tensor<1> {
        // Not relu: it may start dead, and then nothing is learnt.
        let x = self.frozen.forward(fill([3, 4], item, device)).tanh();
        let x = self.twice.forward(self.twice.forward(x).tanh());
        self.tiny.forward(x).square().mean()
    }
}
