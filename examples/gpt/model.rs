//! [`Gpt`]: a decoder-only transformer. Shape letters: B batch, T sequence, D hidden, V vocabulary.

use burn::config::Config;
use burn::module::Module;
use burn::nn::attention::{
    MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, generate_autoregressive_mask,
};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{
    Embedding, EmbeddingConfig, Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use burn::tensor::{Device, Int, Tensor};

/// Sizes of a [`Gpt`].
#[derive(Config, Debug)]
pub struct GptConfig {
    /// V: number of tokens.
    #[config(default = 256)]
    pub vocabulary: usize,
    /// Longest T.
    #[config(default = 128)]
    pub seq: usize,
    /// Number of blocks.
    #[config(default = 2)]
    pub layers: usize,
    /// D: width.
    #[config(default = 128)]
    pub hidden: usize,
    /// Number of attention heads; divides D.
    #[config(default = 4)]
    pub heads: usize,
}

/// Token and position embeddings, blocks, a last norm and a head without bias.
#[derive(Module, Debug)]
pub struct Gpt {
    pub(super) tokens: Embedding,
    pub(super) positions: Embedding,
    pub(super) blocks: Vec<Block>,
    pub(super) norm: LayerNorm,
    pub(super) head: Linear,
}

/// Attention and a feed-forward of width 4D, each behind a norm and beside a residual.
#[derive(Module, Debug)]
pub struct Block {
    pub(super) norm_attention: LayerNorm,
    pub(super) attention: MultiHeadAttention,
    pub(super) norm_mlp: LayerNorm,
    pub(super) up: Linear,
    pub(super) activation: Gelu,
    pub(super) down: Linear,
}

impl GptConfig {
    /// A model with random parameters.
    pub fn init(&self, device: &Device) -> Gpt {
        Gpt {
            tokens: EmbeddingConfig::new(self.vocabulary, self.hidden).init(device),
            positions: EmbeddingConfig::new(self.seq, self.hidden).init(device),
            blocks: (0..self.layers).map(|_| self.block(device)).collect(),
            norm: LayerNormConfig::new(self.hidden).init(device),
            head: LinearConfig::new(self.hidden, self.vocabulary)
                .with_bias(false)
                .init(device),
        }
    }

    fn block(&self, device: &Device) -> Block {
        Block {
            norm_attention: LayerNormConfig::new(self.hidden).init(device),
            attention: MultiHeadAttentionConfig::new(self.hidden, self.heads)
                .with_dropout(0.0)
                .init(device),
            norm_mlp: LayerNormConfig::new(self.hidden).init(device),
            up: LinearConfig::new(self.hidden, 4 * self.hidden).init(device),
            activation: Gelu::new(),
            down: LinearConfig::new(4 * self.hidden, self.hidden).init(device),
        }
    }
}

impl Block {
    /// `[B, T, D] -> [B, T, D]`.
    pub fn forward(&self, x_btd: Tensor<3>) -> Tensor<3> {
        let [batch, seq, _] = x_btd.dims();
        let mask = generate_autoregressive_mask(batch, seq, &x_btd.device());
        let attention = MhaInput::self_attn(self.norm_attention.forward(x_btd.clone()));
        let attention = self.attention.forward(attention.mask_attn(mask)).context;
        let x_btd = x_btd + attention;
        let up = self.up.forward(self.norm_mlp.forward(x_btd.clone()));
        x_btd + self.down.forward(self.activation.forward(up))
    }
}

impl Gpt {
    /// `[B, T] -> [B, T, V]`: the logits of each next token.
    pub fn forward(&self, tokens_bt: Tensor<2, Int>) -> Tensor<3> {
        let mut x_btd = embed(&self.tokens, &self.positions, tokens_bt);
        for block in &self.blocks {
            x_btd = block.forward(x_btd);
        }
        self.head.forward(self.norm.forward(x_btd))
    }

    /// `[B, T], [B, T] -> [1]`: the mean cross entropy of the targets.
    pub fn loss(&self, tokens_bt: Tensor<2, Int>, targets_bt: Tensor<2, Int>) -> Tensor<1> {
        mean_loss(self.forward(tokens_bt), targets_bt)
    }
}

/// `[B, T] -> [B, T, D]`.
pub(super) fn embed(
    tokens: &Embedding,
    positions: &Embedding,
    tokens_bt: Tensor<2, Int>,
) -> Tensor<3> {
    let [_, seq] = tokens_bt.dims();
    let numbers = Tensor::arange(0..seq as i64, &tokens_bt.device()).unsqueeze();
    tokens.forward(tokens_bt) + positions.forward(numbers)
}

/// `[B, T, V], [B, T] -> [1]`.
pub(super) fn mean_loss(logits_btv: Tensor<3>, targets_bt: Tensor<2, Int>) -> Tensor<1> {
    let [batch, seq, vocabulary] = logits_btv.dims();
    CrossEntropyLossConfig::new()
        .init(&logits_btv.device())
        .forward(
            logits_btv.reshape([batch * seq, vocabulary]),
            targets_bt.reshape([batch * seq]),
        )
}
