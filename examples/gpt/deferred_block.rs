//! [`DeferredBlock`]: a [`Block`] whose backward pass can be split.

use burn::module::Module;
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::{Gelu, LayerNorm};
use burn::tensor::Tensor;
use burn_dist::backend::DeferredProducts;
use burn_pipeline::{DeferredAttention, DeferredLinear};

use super::Block;

/// A [`Block`] with the same bits, whose weights' gradients are computed when a schedule says so.
#[derive(Module, Debug)]
pub struct DeferredBlock {
    norm_attention: LayerNorm,
    attention: DeferredAttention,
    norm_mlp: LayerNorm,
    up: DeferredLinear,
    activation: Gelu,
    down: DeferredLinear,
}

impl DeferredBlock {
    /// Takes the place of a block.
    pub fn from_dense(dense: Block, products: &DeferredProducts) -> Self {
        Self {
            norm_attention: dense.norm_attention,
            attention: DeferredAttention::from_dense(dense.attention, products),
            norm_mlp: dense.norm_mlp,
            up: DeferredLinear::from_dense(dense.up, products),
            activation: dense.activation,
            down: DeferredLinear::from_dense(dense.down, products),
        }
    }

    /// The block.
    pub fn to_dense(&self) -> Block {
        Block {
            norm_attention: self.norm_attention.clone(),
            attention: self.attention.to_dense(),
            norm_mlp: self.norm_mlp.clone(),
            up: self.up.to_dense(),
            activation: self.activation.clone(),
            down: self.down.to_dense(),
        }
    }

    /// `[B, T, D] -> [B, T, D]`.
    pub fn forward(&self, x_btd: Tensor<3>) -> Tensor<3> {
        let [batch, seq, _] = x_btd.dims();
        let mask = generate_autoregressive_mask(batch, seq, &x_btd.device());
        let normed = self.norm_attention.forward(x_btd.clone());
        let attention = self.attention.forward(normed, None, Some(mask));
        let x_btd = x_btd + attention;
        let up = self.up.forward(self.norm_mlp.forward(x_btd.clone()));
        x_btd + self.down.forward(self.activation.forward(up))
    }
}
