//! ZeRO stage 3: the same bits as one rank in the same grouping, for models that know nothing of it.
#![warn(missing_docs)]

#[path = "fully_shard/hybrid.rs"]
mod hybrid;
#[path = "fully_shard/layers.rs"]
mod layers;
#[path = "fully_shard/misuse.rs"]
mod misuse;
#[path = "zero/models.rs"]
mod models;
#[path = "fully_shard/odd.rs"]
mod odd;
#[path = "fully_shard/precision.rs"]
mod precision;
#[path = "fully_shard/runs.rs"]
mod runs;
#[path = "fully_shard/stack.rs"]
mod stack;
#[path = "fully_shard/traffic.rs"]
mod traffic;
#[path = "zero/wide.rs"]
mod wide;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::tensor::{Device, Tensor};
use burn_zero::{FullyShard, UnitPolicy};
use models::{Convolutional, Encoder, Partly, Recurrent, Tied, Toy, fill};
use runs::{check, check_long, check_with};

pub(crate) fn adamw() -> ModuleOptimizer {
    AdamWConfig::new().with_weight_decay(0.1).init()
}

#[test]
fn a_chain_of_layers() {
    check::<stack::Stack>(adamw);
}

#[test]
fn a_transformer_encoder() {
    check::<Encoder>(adamw);
}

#[test]
fn an_lstm() {
    check::<Recurrent>(adamw);
}

#[test]
fn a_convolutional_net_with_batch_norm() {
    check::<Convolutional>(adamw);
}

#[test]
fn tied_weights() {
    check::<Tied>(adamw);
}

#[test]
fn frozen_parts_layers_used_twice_and_never() {
    check::<Partly>(adamw);
}

#[test]
fn a_hundred_steps() {
    check_long::<Encoder>(adamw);
    check_long::<Recurrent>(adamw);
    check_long::<Convolutional>(adamw);
    check_long::<Tied>(adamw);
    check_long::<Partly>(adamw);
}

/// A layer that only every other rank uses, in a unit that all gather.
#[derive(Module, Debug)]
struct Sometimes {
    always: Linear,
    sometimes: Linear,
}

impl Toy for Sometimes {
    fn init(device: &Device) -> Self {
        Self {
            always: LinearConfig::new(4, 4).init(device),
            sometimes: LinearConfig::new(4, 4).init(device),
        }
    }

    fn loss(&self, item: usize, device: &Device) -> Tensor<1> {
        let mut x = self.always.forward(fill([3, 4], item, device));
        if item.is_multiple_of(2) {
            x = self.sometimes.forward(x);
        }
        x.square().mean()
    }
}

#[test]
fn a_layer_that_some_ranks_use() {
    check_with::<Sometimes>(adamw, |group| {
        FullyShard::new(group).units(UnitPolicy::Whole)
    });
}
