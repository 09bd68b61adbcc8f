//! [`GptPart`]: a [`Gpt`] as the list of blocks that a pipeline deals out.

use burn::module::Module;
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::{Embedding, Gelu, LayerNorm, Linear};
use burn::tensor::{Device, Int, Tensor};
use burn_dist::Result;
use burn_dist::backend::DeferredProducts;
use burn_pipeline::{Activation, DeferredAttention, DeferredLinear, PipelineBlock};

use super::model::{embed, mean_loss};
use super::{Block, Gpt, GptConfig};

/// A micro-batch.
#[derive(Debug, Clone)]
pub struct TokenBatch {
    /// `[B, T]`.
    pub tokens: Tensor<2, Int>,
    /// `[B, T]`.
    pub targets: Tensor<2, Int>,
}

/// A part of a [`Gpt`]: half of a block, so that stages of equal cost can be cut, or an end of the model.
/// Linear layers in blocks leave their weights' gradients to be computed when a schedule says so.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a model has few parts")]
pub enum GptPart {
    /// The first one.
    Embedding(GptEmbedding),
    /// The first half of a block.
    Attention(GptAttention),
    /// The second half.
    FeedForward(GptFeedForward),
    /// The last one.
    Head(GptHead),
}

/// What makes activations of tokens.
#[derive(Module, Debug)]
pub struct GptEmbedding {
    tokens: Embedding,
    positions: Embedding,
}

/// `x + attention(norm(x))`.
#[derive(Module, Debug)]
pub struct GptAttention {
    norm: LayerNorm,
    attention: DeferredAttention,
}

/// `x + down(gelu(up(norm(x))))`.
#[derive(Module, Debug)]
pub struct GptFeedForward {
    norm: LayerNorm,
    up: DeferredLinear,
    activation: Gelu,
    down: DeferredLinear,
}

/// What makes a loss of activations.
#[derive(Module, Debug)]
pub struct GptHead {
    norm: LayerNorm,
    head: Linear,
}

impl GptConfig {
    /// Parameters of each part, in order.
    pub fn part_sizes(&self) -> Vec<f64> {
        let (d, v) = (self.hidden, self.vocabulary);
        let mut sizes = vec![(v + self.seq) * d];
        for _ in 0..self.layers {
            sizes.extend([4 * d * d + 6 * d, 8 * d * d + 7 * d]);
        }
        sizes.push(2 * d + d * v);
        sizes.into_iter().map(|size| size as f64).collect()
    }

    /// The parts of a model with random parameters; those of linear layers in blocks go to `products`.
    pub fn init_parts(
        &self,
        products: &DeferredProducts,
        device: &Device,
    ) -> impl Iterator<Item = Result<GptPart>> {
        let gpt = self.init(device);
        let embedding = GptPart::Embedding(GptEmbedding {
            tokens: gpt.tokens,
            positions: gpt.positions,
        });
        let head = GptPart::Head(GptHead {
            norm: gpt.norm,
            head: gpt.head,
        });
        let blocks = gpt.blocks.into_iter();
        let halves = blocks.flat_map(|block| GptPart::halves(block, products));
        let parts = std::iter::once(embedding).chain(halves).chain([head]);
        parts.map(Ok)
    }
}

impl GptPart {
    fn halves(block: Block, products: &DeferredProducts) -> [Self; 2] {
        let attention = GptAttention {
            norm: block.norm_attention,
            attention: DeferredAttention::from_dense(block.attention, products),
        };
        let feed_forward = GptFeedForward {
            norm: block.norm_mlp,
            up: DeferredLinear::from_dense(block.up, products),
            activation: block.activation,
            down: DeferredLinear::from_dense(block.down, products),
        };
        [Self::Attention(attention), Self::FeedForward(feed_forward)]
    }

    /// The part of this number; the parameters are the model's.
    pub fn of(gpt: &Gpt, number: usize, products: &DeferredProducts) -> Self {
        let Some(half) = number.checked_sub(1) else {
            return Self::Embedding(GptEmbedding {
                tokens: gpt.tokens.clone(),
                positions: gpt.positions.clone(),
            });
        };
        match gpt.blocks.get(half / 2) {
            Some(block) => {
                let [attention, feed_forward] = Self::halves(block.clone(), products);
                if half.is_multiple_of(2) {
                    attention
                } else {
                    feed_forward
                }
            }
            None => Self::Head(GptHead {
                norm: gpt.norm.clone(),
                head: gpt.head.clone(),
            }),
        }
    }

    /// Puts this part, the one of this number, in its place in a model of the same sizes.
    pub fn put_into(&self, gpt: &mut Gpt, number: usize) {
        match self {
            Self::Embedding(part) => {
                gpt.tokens = part.tokens.clone();
                gpt.positions = part.positions.clone();
            }
            Self::Attention(part) => {
                let block = &mut gpt.blocks[(number - 1) / 2];
                block.norm_attention = part.norm.clone();
                block.attention = part.attention.to_dense();
            }
            Self::FeedForward(part) => {
                let block = &mut gpt.blocks[(number - 1) / 2];
                block.norm_mlp = part.norm.clone();
                block.up = part.up.to_dense();
                block.down = part.down.to_dense();
            }
            Self::Head(part) => {
                gpt.norm = part.norm.clone();
                gpt.head = part.head.clone();
            }
        }
    }
}

impl GptAttention {
    /// `[B, T, D] -> [B, T, D]`.
    fn forward(&self, x_btd: Tensor<3>) -> Tensor<3> {
        let [batch, seq, _] = x_btd.dims();
        let mask = generate_autoregressive_mask(batch, seq, &x_btd.device());
        let normed = self.norm.forward(x_btd.clone());
        x_btd + self.attention.forward(normed, None, Some(mask))
    }
}

impl GptFeedForward {
    /// `[B, T, D] -> [B, T, D]`.
    fn forward(&self, x_btd: Tensor<3>) -> Tensor<3> {
        let up = self.up.forward(self.norm.forward(x_btd.clone()));
        x_btd + self.down.forward(self.activation.forward(up))
    }
}

impl PipelineBlock for GptPart {
    type Batch = TokenBatch;

    fn forward(&self, mut input: Vec<Activation>, batch: &TokenBatch) -> Result<Vec<Activation>> {
        let mut x_btd = || {
            let one = input.pop();
            one.expect("invariant: a part before this one").float::<3>()
        };
        Ok(vec![match self {
            Self::Embedding(part) => {
                embed(&part.tokens, &part.positions, batch.tokens.clone()).into()
            }
            Self::Attention(part) => part.forward(x_btd()?).into(),
            Self::FeedForward(part) => part.forward(x_btd()?).into(),
            Self::Head(part) => {
                let logits_btv = part.head.forward(part.norm.forward(x_btd()?));
                mean_loss(logits_btv, batch.targets.clone()).into()
            }
        }])
    }
}
