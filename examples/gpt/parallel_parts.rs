//! [`ParallelGptPart`]: a [`ParallelGpt`] as the list of blocks that a pipeline deals out.

use burn::module::Module;
use burn::nn::{Embedding, LayerNorm};
use burn::tensor::Device;
use burn_dist::Result;
use burn_dist::tensor_parallel::{
    ColumnParallelLinear, SequenceParallel, TensorParallel, VocabParallelEmbedding,
};
use burn_pipeline::{Activation, PipelineBlock};

use super::parallel_gpt::{embed, mean_loss};
use super::{Gpt, GptConfig, ParallelBlock, TokenBatch};

/// A part of a [`ParallelGpt`](super::ParallelGpt).
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a model has few parts")]
pub enum ParallelGptPart {
    /// The first one.
    Embedding(ParallelEmbedding),
    /// In the middle.
    Block(ParallelBlock),
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
        let blocks = gpt.blocks.into_iter().map(ParallelGptPart::Block);
        let parts = std::iter::once(embedding).chain(blocks).chain([head]);
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
            Self::Block(block) => gpt.blocks[number - 1] = block.to_dense()?,
            Self::Head(part) => {
                gpt.norm = part.norm.layer.clone();
                gpt.head = part.head.to_dense()?;
            }
        }
        Ok(())
    }
}

impl PipelineBlock for ParallelGptPart {
    type Batch = TokenBatch;

    fn forward(&self, mut input: Vec<Activation>, batch: &TokenBatch) -> Result<Vec<Activation>> {
        let mut x_btd = || {
            let one = input.pop();
            one.expect("invariant: a block before this one")
                .float::<3>()
        };
        let [_, seq] = batch.tokens.dims();
        Ok(vec![match self {
            Self::Embedding(part) => {
                let (positions, parallel) = (&part.positions, &part.parallel);
                embed(&part.tokens, positions, parallel, batch.tokens.clone())?.into()
            }
            Self::Block(block) => block.forward(x_btd()?, seq)?.into(),
            Self::Head(part) => {
                let logits_btv = part.head.forward(part.norm.forward(x_btd()?)?)?;
                let targets = batch.targets.clone();
                mean_loss(logits_btv, targets, part.vocabulary, &part.head)?.into()
            }
        }])
    }
}
