//! [`GptPart`]: a [`Gpt`] as the list of blocks that a pipeline deals out.

use burn::module::Module;
use burn::nn::{Embedding, LayerNorm, Linear};
use burn::tensor::{Device, Int, Tensor};
use burn_dist::Result;
use burn_dist::backend::DeferredProducts;
use burn_pipeline::{Activation, PipelineBlock};

use super::model::{embed, mean_loss};
use super::{Block, DeferredBlock, Gpt, GptConfig};

/// A micro-batch.
#[derive(Debug, Clone)]
pub struct TokenBatch {
    /// `[B, T]`.
    pub tokens: Tensor<2, Int>,
    /// `[B, T]`.
    pub targets: Tensor<2, Int>,
}

/// A part of a [`Gpt`].
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a model has few parts")]
pub enum GptPart {
    /// The first one.
    Embedding(GptEmbedding),
    /// In the middle.
    Block(Block),
    /// The same for schedules that split the backward pass.
    Deferred(DeferredBlock),
    /// The last one.
    Head(GptHead),
}

/// What makes activations of tokens.
#[derive(Module, Debug)]
pub struct GptEmbedding {
    tokens: Embedding,
    positions: Embedding,
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
        let ends = [(v + self.seq) * d, 2 * d + d * v].map(|size| size as f64);
        let block = (12 * d * d + 13 * d) as f64;
        let blocks = std::iter::repeat_n(block, self.layers);
        std::iter::once(ends[0])
            .chain(blocks)
            .chain([ends[1]])
            .collect()
    }

    /// The parts of a model with random parameters; with `products`, blocks whose backward pass can be split.
    pub fn init_parts(
        &self,
        products: Option<&DeferredProducts>,
        device: &Device,
    ) -> impl Iterator<Item = Result<GptPart>> {
        let gpt = self.init(device);
        let blocks = gpt.blocks.into_iter().map(move |block| match products {
            Some(products) => GptPart::Deferred(DeferredBlock::from_dense(block, products)),
            None => GptPart::Block(block),
        });
        let embedding = GptPart::Embedding(GptEmbedding {
            tokens: gpt.tokens,
            positions: gpt.positions,
        });
        let head = GptPart::Head(GptHead {
            norm: gpt.norm,
            head: gpt.head,
        });
        let parts = std::iter::once(embedding).chain(blocks).chain([head]);
        parts.map(Ok)
    }
}

impl GptPart {
    /// The part of this number.
    pub fn of(gpt: &Gpt, number: usize) -> Self {
        if number == 0 {
            return Self::Embedding(GptEmbedding {
                tokens: gpt.tokens.clone(),
                positions: gpt.positions.clone(),
            });
        }
        match gpt.blocks.get(number - 1) {
            Some(block) => Self::Block(block.clone()),
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
            Self::Block(block) => gpt.blocks[number - 1] = block.clone(),
            Self::Deferred(block) => gpt.blocks[number - 1] = block.to_dense(),
            Self::Head(part) => {
                gpt.norm = part.norm.clone();
                gpt.head = part.head.clone();
            }
        }
    }
}

impl PipelineBlock for GptPart {
    type Batch = TokenBatch;

    fn forward(&self, mut input: Vec<Activation>, batch: &TokenBatch) -> Result<Vec<Activation>> {
        let mut x_btd = || {
            input
                .pop()
                .expect("invariant: a block before this one")
                .float::<3>()
        };
        Ok(vec![match self {
            Self::Embedding(part) => {
                embed(&part.tokens, &part.positions, batch.tokens.clone()).into()
            }
            Self::Block(block) => block.forward(x_btd()?).into(),
            Self::Deferred(block) => block.forward(x_btd()?).into(),
            Self::Head(part) => {
                let logits_btv = part.head.forward(part.norm.forward(x_btd()?));
                mean_loss(logits_btv, batch.targets.clone()).into()
            }
        }])
    }
}
