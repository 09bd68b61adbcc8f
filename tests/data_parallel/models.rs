//! Models whose parameters and items are computed, so that every rank has the same.

use burn::module::{Module, Param};
use burn::nn::{Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};

#[derive(Module, Debug)]
pub(crate) struct Mlp {
    pub(crate) first: Linear,
    pub(crate) norm: LayerNorm,
    pub(crate) second: Linear,
    pub(crate) third: Linear,
    pub(crate) activation: Gelu,
}

pub(crate) fn fill(shape: [usize; 2], seed: usize, device: &Device) -> Tensor<2> {
    let values: Vec<f32> = (0..shape[0] * shape[1])
        .map(|i| (((i + 1) * (seed + 3) * 2_654_435_761) % 1000) as f32 / 1000.0 - 0.5)
        .collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

pub(crate) fn linear(inputs: usize, outputs: usize, seed: usize, device: &Device) -> Linear {
    let mut linear = LinearConfig::new(inputs, outputs).init(device);
    linear.weight = Param::from_tensor(fill([inputs, outputs], seed, device));
    linear.bias = Some(Param::from_tensor(
        fill([1, outputs], seed + 50, device).squeeze_dim(0),
    ));
    linear
}

/// Differs with `seed`, so that the broadcast has something to do.
pub(crate) fn mlp(seed: usize, device: &Device) -> Mlp {
    Mlp {
        first: linear(6, 10, seed, device),
        norm: LayerNormConfig::new(10).init(device),
        second: linear(10, 9, seed + 1, device),
        third: linear(9, 3, seed + 2, device),
        activation: Gelu::new(),
    }
}

impl Mlp {
    pub(crate) fn loss(&self, item: usize) -> Tensor<1> {
        let device = self.first.weight.device();
        let x = fill([4, 6], 100 + item, &device);
        let target = fill([4, 3], 200 + item, &device);
        let x = self
            .norm
            .forward(self.activation.forward(self.first.forward(x)));
        let x = self.activation.forward(self.second.forward(x));
        (self.third.forward(x) - target).square().mean()
    }
}

#[derive(Module, Debug)]
pub(crate) struct Branches {
    pub(crate) used: Linear,
    pub(crate) on_rank_0: Linear,
    pub(crate) nowhere: Linear,
    pub(crate) twice: Linear,
    /// The same parameters as `twice`: one identifier, one gradient.
    pub(crate) shared: Linear,
}

impl Branches {
    pub(crate) fn new(device: &Device) -> Self {
        let twice = linear(3, 3, 4, device);
        Self {
            shared: twice.clone(),
            used: linear(3, 3, 1, device),
            on_rank_0: linear(3, 3, 2, device),
            nowhere: linear(3, 3, 3, device),
            twice,
        }
    }

    pub(crate) fn loss(&self, rank: usize, item: usize) -> Tensor<1> {
        let mut x = self
            .used
            .forward(fill([2, 3], rank + 10 * item, &self.used.weight.device()));
        if rank == 0 {
            x = self.on_rank_0.forward(x);
        }
        let x = self.twice.forward(self.twice.forward(x).tanh());
        self.shared.forward(x).square().mean()
    }
}
