//! [`ParallelGpt`]: a [`Gpt`] whose layers are split over ranks. Shape letters as there; n ranks.

use burn::module::Module;
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::{Embedding, EmbeddingConfig, Gelu, LayerNorm, LayerNormConfig};
use burn::tensor::{Device, Int, Tensor};
use burn_dist::Result;
use burn_dist::tensor_parallel::{
    AttentionInput, ColumnParallelLinear, ColumnParallelLinearConfig, CrossEntropyOptions,
    ParallelAttention, ParallelAttentionConfig, RowParallelLinear, RowParallelLinearConfig,
    SequenceParallel, TensorParallel, VocabParallelEmbedding, VocabParallelEmbeddingConfig,
    vocab_parallel_cross_entropy,
};

use super::{Block, Gpt, GptConfig};

/// The vocabulary, the heads and the inner features of every block are split; with sequence parallelism
/// all between them is split along T.
#[derive(Module, Debug)]
pub struct ParallelGpt {
    pub(super) tokens: VocabParallelEmbedding,
    pub(super) positions: Embedding,
    pub(super) blocks: Vec<ParallelBlock>,
    pub(super) norm: SequenceParallel<LayerNorm>,
    pub(super) head: ColumnParallelLinear,
}

/// A [`Block`], split.
#[derive(Module, Debug)]
pub struct ParallelBlock {
    pub(super) norm_attention: SequenceParallel<LayerNorm>,
    pub(super) attention: ParallelAttention,
    pub(super) norm_mlp: SequenceParallel<LayerNorm>,
    pub(super) up: ColumnParallelLinear,
    pub(super) activation: Gelu,
    pub(super) down: RowParallelLinear,
}

impl GptConfig {
    /// This rank's part of the model that [`init`](Self::init) draws from the same seed. Local.
    ///
    /// # Errors
    /// [`DistError::Config`](burn_dist::DistError::Config) if the ranks do not divide the heads.
    pub fn init_parallel(&self, parallel: &TensorParallel, device: &Device) -> Result<ParallelGpt> {
        let norm =
            || SequenceParallel::new(LayerNormConfig::new(self.hidden).init(device), parallel);
        let block = || {
            Ok(ParallelBlock {
                norm_attention: norm(),
                attention: ParallelAttentionConfig::new(self.hidden, self.heads)
                    .with_dropout(0.0)
                    .init(parallel, device)?,
                norm_mlp: norm(),
                up: ColumnParallelLinearConfig::new(self.hidden, vec![4 * self.hidden])
                    .init(parallel, device)?,
                activation: Gelu::new(),
                down: RowParallelLinearConfig::new(4 * self.hidden, self.hidden)
                    .init(parallel, device)?,
            })
        };
        Ok(ParallelGpt {
            tokens: VocabParallelEmbeddingConfig::new(self.vocabulary, self.hidden)
                .init(parallel, device)?,
            positions: EmbeddingConfig::new(self.seq, self.hidden).init(device),
            blocks: (0..self.layers).map(|_| block()).collect::<Result<_>>()?,
            norm: norm(),
            head: ColumnParallelLinearConfig::new(self.hidden, vec![self.vocabulary])
                .with_bias(false)
                .with_pad(true)
                .init(parallel, device)?,
        })
    }
}

impl ParallelBlock {
    fn from_dense(dense: &Block, parallel: &TensorParallel) -> Result<Self> {
        Ok(Self {
            norm_attention: SequenceParallel::new(dense.norm_attention.clone(), parallel),
            attention: ParallelAttention::from_dense(&dense.attention, parallel)?,
            norm_mlp: SequenceParallel::new(dense.norm_mlp.clone(), parallel),
            up: ColumnParallelLinear::from_dense(&dense.up, parallel)?,
            activation: dense.activation.clone(),
            down: RowParallelLinear::from_dense(&dense.down, parallel)?,
        })
    }

    fn to_dense(&self) -> Result<Block> {
        Ok(Block {
            norm_attention: self.norm_attention.layer.clone(),
            attention: self.attention.to_dense()?,
            norm_mlp: self.norm_mlp.layer.clone(),
            up: self.up.to_dense()?,
            activation: self.activation.clone(),
            down: self.down.to_dense()?,
        })
    }

    /// `[B, T, D] -> [B, T, D]`, or `[B, T/n, D]` in and out; `seq` is T.
    ///
    /// # Errors
    /// What the group met.
    pub fn forward(&self, x_btd: Tensor<3>, seq: usize) -> Result<Tensor<3>> {
        let x_btd = attend(&self.norm_attention, &self.attention, x_btd, seq)?;
        let up = self.up.forward(self.norm_mlp.forward(x_btd.clone())?)?;
        Ok(x_btd + self.down.forward(self.activation.forward(up))?)
    }
}

/// `x + attention(norm(x))`.
pub(super) fn attend(
    norm: &SequenceParallel<LayerNorm>,
    attention: &ParallelAttention,
    x_btd: Tensor<3>,
    seq: usize,
) -> Result<Tensor<3>> {
    let [batch, _, _] = x_btd.dims();
    let mask = generate_autoregressive_mask(batch, seq, &x_btd.device());
    let input = AttentionInput::self_attn(norm.forward(x_btd.clone())?);
    Ok(x_btd + attention.forward(input.mask_attn(mask))?.context)
}

impl ParallelGpt {
    /// This rank's part of a model that all ranks hold alike. Local.
    ///
    /// # Errors
    /// [`DistError::Config`](burn_dist::DistError::Config) if the ranks do not divide the heads.
    pub fn from_dense(dense: &Gpt, parallel: &TensorParallel) -> Result<Self> {
        let blocks = dense.blocks.iter();
        let blocks = blocks.map(|block| ParallelBlock::from_dense(block, parallel));
        let device = dense.positions.weight.base().device();
        Ok(Self {
            tokens: VocabParallelEmbedding::from_dense(&dense.tokens, parallel)?,
            positions: dense.positions.clone().fork(&device),
            blocks: blocks.collect::<Result<_>>()?,
            norm: SequenceParallel::new(dense.norm.clone(), parallel),
            head: ColumnParallelLinear::from_dense_vocabulary(&dense.head, parallel)?,
        })
    }

    /// The whole model. Collective: all_gathers.
    ///
    /// # Errors
    /// What the group met.
    pub fn to_dense(&self) -> Result<Gpt> {
        let blocks = self.blocks.iter().map(ParallelBlock::to_dense);
        Ok(Gpt {
            tokens: self.tokens.to_dense()?,
            positions: self.positions.clone(),
            blocks: blocks.collect::<Result<_>>()?,
            norm: self.norm.layer.clone(),
            head: self.head.to_dense()?,
        })
    }

    /// `[B, T] -> [B, T, V/n]`: this rank's logits of each next token.
    ///
    /// # Errors
    /// A sequence that the ranks do not divide, with sequence parallelism; else what the group met.
    pub fn forward(&self, tokens_bt: Tensor<2, Int>) -> Result<Tensor<3>> {
        let [_, seq] = tokens_bt.dims();
        let parallel = self.head.parallel();
        let mut x_btd = embed(&self.tokens, &self.positions, parallel, tokens_bt)?;
        for block in &self.blocks {
            x_btd = block.forward(x_btd, seq)?;
        }
        self.head.forward(self.norm.forward(x_btd)?)
    }

    /// `[B, T], [B, T] -> [1]`: the mean cross entropy of the targets, on every rank.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn loss(&self, tokens_bt: Tensor<2, Int>, targets_bt: Tensor<2, Int>) -> Result<Tensor<1>> {
        let logits_btv = self.forward(tokens_bt)?;
        mean_loss(logits_btv, targets_bt, self.tokens.vocabulary(), &self.head)
    }
}

/// `[B, T] -> [B, T, D]`, or `[B, T/n, D]`.
pub(super) fn embed(
    tokens: &VocabParallelEmbedding,
    positions: &Embedding,
    parallel: &TensorParallel,
    tokens_bt: Tensor<2, Int>,
) -> Result<Tensor<3>> {
    let [_, seq] = tokens_bt.dims();
    let numbers = Tensor::arange(0..seq as i64, &tokens_bt.device()).unsqueeze();
    let positions = parallel.split_sequence(positions.forward(numbers))?;
    Ok(tokens.forward(tokens_bt)? + positions)
}

/// `[B, T, V/n], [B, T] -> [1]`.
pub(super) fn mean_loss(
    logits_btv: Tensor<3>,
    targets_bt: Tensor<2, Int>,
    vocabulary: usize,
    head: &ColumnParallelLinear,
) -> Result<Tensor<1>> {
    let [batch, seq, columns] = logits_btv.dims();
    vocab_parallel_cross_entropy(
        logits_btv.reshape([batch * seq, columns]),
        targets_bt.reshape([batch * seq]),
        &CrossEntropyOptions::new(vocabulary),
        head.parallel().group(),
    )
}
