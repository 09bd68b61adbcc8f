//! [`DeferredAttention`]: Burn's attention for schedules that split the backward pass.

use burn::module::Module;
use burn::nn::Dropout;
use burn::nn::attention::{MultiHeadAttention, MultiHeadAttentionConfig};
use burn::tensor::activation::{quiet_softmax, softmax};
use burn::tensor::{Bool, Tensor};
use burn_dist::backend::DeferredProducts;

use crate::DeferredLinear;

/// Burn's `MultiHeadAttention` of [`DeferredLinear`]s: the same operations in the same order, and so the
/// same bits. Nothing is sent. (Vaswani et al., arXiv 1706.03762, section 3.2.2.)
#[derive(Module, Debug)]
pub struct DeferredAttention {
    /// `[.., h] -> [.., h]`.
    pub query: DeferredLinear,
    /// `[.., h] -> [.., h]`.
    pub key: DeferredLinear,
    /// `[.., h] -> [.., h]`.
    pub value: DeferredLinear,
    /// `[.., h] -> [.., h]`.
    pub output: DeferredLinear,
    dropout: Dropout,
    heads: usize,
    d_head: usize,
    min_float: f64,
    quiet_softmax: bool,
}

impl DeferredAttention {
    /// Takes the place of a dense module; products go to `products`, which the stage gives to the runtime.
    pub fn from_dense(dense: MultiHeadAttention, products: &DeferredProducts) -> Self {
        let deferred = |linear| DeferredLinear::from_dense(linear, products);
        Self {
            query: deferred(dense.query),
            key: deferred(dense.key),
            value: deferred(dense.value),
            output: deferred(dense.output),
            dropout: dense.dropout,
            heads: dense.n_heads,
            d_head: dense.d_k,
            min_float: dense.min_float,
            quiet_softmax: dense.quiet_softmax,
        }
    }

    /// The dense module.
    pub fn to_dense(&self) -> MultiHeadAttention {
        let device = self.query.weight.base().device();
        let config = MultiHeadAttentionConfig::new(self.heads * self.d_head, self.heads)
            .with_min_float(self.min_float)
            .with_quiet_softmax(self.quiet_softmax);
        let mut dense = config.init(&device);
        dense.query = self.query.to_dense();
        dense.key = self.key.to_dense();
        dense.value = self.value.to_dense();
        dense.output = self.output.to_dense();
        dense.dropout = self.dropout.clone();
        dense
    }

    /// `[b, s, h] -> [b, s, h]`, a sequence that attends to itself. Masks are true where it must not look:
    /// `[b, s]` at tokens that are padding, `[b, s, s]` from each token.
    pub fn forward(
        &self,
        input: Tensor<3>,
        mask_pad: Option<Tensor<2, Bool>>,
        mask_attn: Option<Tensor<3, Bool>>,
    ) -> Tensor<3> {
        let [batch, seq, width] = input.dims();
        let project = |layer: &DeferredLinear, x: Tensor<3>| {
            let heads = layer
                .forward(x)
                .reshape([batch, seq, self.heads, self.d_head]);
            heads.swap_dims(1, 2)
        };
        let query = project(&self.query, input.clone());
        let key = project(&self.key, input.clone());
        let value = project(&self.value, input);
        let scores = query.matmul(key.transpose());
        let mut scores = scores.div_scalar((self.d_head as f32).sqrt());
        if let Some(mask) = mask_pad {
            scores = scores.mask_fill(mask.reshape([batch, 1, 1, seq]), self.min_float);
        }
        if let Some(mask) = mask_attn {
            scores = scores.mask_fill(mask.reshape([batch, 1, seq, seq]), self.min_float);
        }
        let weights = match self.quiet_softmax {
            true => quiet_softmax(scores, 3),
            false => softmax(scores, 3),
        };
        let context = self.dropout.forward(weights).matmul(value);
        let context = context.swap_dims(1, 2).reshape([batch, seq, width]);
        self.output.forward(context)
    }
}
