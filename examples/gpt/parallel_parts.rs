//! [`ParallelGptPart`]: a [`ParallelGpt`](super::ParallelGpt) as the list of blocks that a pipeline deals out.

use burn::module::Module;
use burn::nn::{Embedding, Gelu, LayerNorm};
use burn::tensor::{Device, Tensor};
use burn_dist::Result;
use burn_dist::tensor_parallel::{
    ColumnParallelLinear, ParallelAttention, RowParallelLinear, SequenceParallel, TensorParallel,
    VocabParallelEmbedding,
};
use burn_pipeline::{Activation, PipelineBlock};

use super::parallel_gpt::{attend, embed, mean_loss};
use super::{Gpt, GptConfig, TokenBatch};

/// A rank's share of a [`GptPart`](super::GptPart).
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a model has few parts")]
pub enum ParallelGptPart {
    /// The first one.
    Embedding(ParallelEmbedding),
    /// The first half of a block.
    Attention(ParallelGptAttention),
    /// The second half.
    FeedForward(ParallelGptFeedForward),
    /// The last one.
    Head(ParallelHead),
}

/// What makes activations of tokens.
#[derive(Module, Debug)]
pub struct ParallelEmbedding {
    tokens: VocabParallelEmbedding,
    positions: Embedding,
    #[module(skip)]
    parallel: TensorParallel,
}

/// `x + attention(norm(x))`.
#[derive(Module, Debug)]
pub struct ParallelGptAttention {
    norm: SequenceParallel<LayerNorm>,
    attention: ParallelAttention,
}

/// `x + down(gelu(up(norm(x))))`.
#[derive(Module, Debug)]
pub struct ParallelGptFeedForward {
    norm: SequenceParallel<LayerNorm>,
    up: ColumnParallelLinear,
    activation: Gelu,
    down: RowParallelLinear,
}

/// What makes a loss of activations.
#[derive(Module, Debug)]
pub struct ParallelHead {
    norm: SequenceParallel<LayerNorm>,
    head: ColumnParallelLinear,
    vocabulary: usize,
}

impl GptConfig {
    /// This rank's share of the parts that [`init_parts`](Self::init_parts) draws from the same seed. Local.
    ///
    /// # Errors
    /// As [`init_parallel`](Self::init_parallel).
    pub fn init_parallel_parts(
        &self,
        parallel: &TensorParallel,
        device: &Device,
    ) -> Result<impl Iterator<Item = Result<ParallelGptPart>>> {
        let gpt = self.init_parallel(parallel, device)?;
        let embedding = ParallelGptPart::Embedding(ParallelEmbedding {
            tokens: gpt.tokens,
            positions: gpt.positions,
            parallel: parallel.clone(),
        });
        let head = ParallelGptPart::Head(ParallelHead {
            norm: gpt.norm,
            head: gpt.head,
            vocabulary: self.vocabulary,
        });
        let halves = gpt.blocks.into_iter().flat_map(|block| {
            let attention = ParallelGptAttention {
                norm: block.norm_attention,
                attention: block.attention,
            };
            let feed_forward = ParallelGptFeedForward {
                norm: block.norm_mlp,
                up: block.up,
                activation: block.activation,
                down: block.down,
            };
            [
                ParallelGptPart::Attention(attention),
                ParallelGptPart::FeedForward(feed_forward),
            ]
        });
        let parts = std::iter::once(embedding).chain(halves).chain([head]);
        Ok(parts.map(Ok))
    }
}

impl ParallelGptPart {
    /// Puts this part, the one of this number, whole in its place in a model of the same sizes. Collective
    /// over the ranks that share the part: all_gathers.
    ///
    /// # Errors
    /// What the group met.
    pub fn put_into(&self, gpt: &mut Gpt, number: usize) -> Result<()> {
        match self {
            Self::Embedding(part) => {
                gpt.tokens = part.tokens.to_dense()?;
                gpt.positions = part.positions.clone();
            }
            Self::Attention(part) => {
                let block = &mut gpt.blocks[(number - 1) / 2];
                block.norm_attention = part.norm.layer.clone();
                block.attention = part.attention.to_dense()?;
            }
            Self::FeedForward(part) => {
                let block = &mut gpt.blocks[(number - 1) / 2];
                block.norm_mlp = part.norm.layer.clone();
                block.up = part.up.to_dense()?;
                block.down = part.down.to_dense()?;
            }
            Self::Head(part) => {
                gpt.norm = part.norm.layer.clone();
                gpt.head = part.head.to_dense()?;
            }
        }
        Ok(())
    }
}

impl ParallelGptFeedForward {
    fn forward(&self, x_btd: Tensor<3>) -> Result<Tensor<3>> {
        let up = self.up.forward(self.norm.forward(x_btd.clone())?)?;
        Ok(x_btd + self.down.forward(self.activation.forward(up))?)
    }
}

impl PipelineBlock for ParallelGptPart {
    type Batch = TokenBatch;

    fn forward(&self, mut input: Vec<Activation>, batch: &TokenBatch) -> Result<Vec<Activation>> {
        let mut x_btd = || {
            let one = input.pop();
            one.expect("invariant: a part before this one").float::<3>()
        };
        let [_, seq] = batch.tokens.dims();
        Ok(vec![match self {
            Self::Embedding(part) => {
                let (positions, parallel) = (&part.positions, &part.parallel);
                embed(&part.tokens, positions, parallel, batch.tokens.clone())?.into()
            }
            Self::Attention(part) => attend(&part.norm, &part.attention, x_btd()?, seq)?.into(),
            Self::FeedForward(part) => part.forward(x_btd()?)?.into(),
            Self::Head(part) => {
                let logits_btv = part.head.forward(part.norm.forward(x_btd()?)?)?;
                let targets = batch.targets.clone();
                mean_loss(logits_btv, targets, part.vocabulary, &part.head)?.into()
            }
        }])
    }
}
