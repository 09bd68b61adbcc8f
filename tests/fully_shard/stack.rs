//! A chain of layers, each a unit of its own.

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

use crate::models::{Toy, fill};

/// Width of a layer.
pub(crate) const WIDTH: usize = 40;
/// Layers.
pub(crate) const DEPTH: usize = 5;
/// Elements of a layer: a matrix, its bias, and the two vectors of a norm.
pub(crate) const LAYER: usize = WIDTH * WIDTH + 3 * WIDTH;

#[derive(Module, Debug)]
pub(crate) struct Layer {
    norm: LayerNorm,
    linear: Linear,
}

#[derive(Module, Debug)]
pub(crate) struct Stack {
    layers: Vec<Layer>,
}

impl Stack {
    /// The first layers only.
    pub(crate) fn start(&self, x: Tensor<2>, layers: usize) -> Tensor<2> {
        self.layers[..layers].iter().fold(x, |x, layer| {
            x.clone() + relu(layer.linear.forward(layer.norm.forward(x)))
        })
    }
}

impl Stack {
    pub(crate) fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.start(x, DEPTH)
    }
}

impl Toy for Stack {
    fn init(device: &Device) -> Self {
        let layer = |_| Layer {
            norm: LayerNormConfig::new(WIDTH).init(device),
            linear: LinearConfig::new(WIDTH, WIDTH).init(device),
        };
        Self {
            layers: (0..DEPTH).map(layer).collect(),
        }
    }

    fn loss(&self, item: usize, device: &Device) -> Tensor<1> {
        self.forward(fill([3, WIDTH], item, device)).square().mean()
    }
}
