//! A model large enough to weigh.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

use crate::models::{Toy, fill};

/// Large enough that what a record says beside its numbers does not count.
#[derive(Module, Debug)]
pub(crate) struct Wide {
    first: Linear,
    second: Linear,
}

impl Toy for Wide {
    fn init(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(150, 301).init(device),
            second: LinearConfig::new(301, 299).init(device),
        }
    }

    fn loss(&self, item: usize, device: &Device) -> Tensor<1> {
        let x = relu(self.first.forward(fill([2, 150], item, device)));
        self.second.forward(x).square().mean()
    }
}
