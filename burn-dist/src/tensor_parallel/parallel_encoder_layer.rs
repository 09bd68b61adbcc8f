//! [`ParallelEncoderLayer`]: Burn's transformer encoder layer, split.

use burn::module::Module;
use burn::nn::LayerNorm;
use burn::nn::transformer::{TransformerEncoderConfig, TransformerEncoderLayer};
use burn::tensor::{Bool, Tensor};

use super::{
    AttentionInput, ParallelAttention, ParallelFeedForward, SequenceParallel, SplitDropout,
    TensorParallel,
};
use crate::error::Result;

/// Burn's `TransformerEncoderLayer` with heads and inner features split. Forward two collectives, backward
/// two: `8bsh(n-1)/n` elements sent per layer and micro-batch, with or without sequence parallelism.
#[derive(Module, Debug)]
pub struct ParallelEncoderLayer {
    /// Self-attention.
    pub mha: ParallelAttention,
    /// Feed-forward.
    pub pwff: ParallelFeedForward,
    /// Around the feed-forward.
    pub norm_1: SequenceParallel<LayerNorm>,
    /// Around the attention.
    pub norm_2: SequenceParallel<LayerNorm>,
    /// On both residual paths.
    pub dropout: SplitDropout,
    /// Norms come before what they are around, not after.
    pub norm_first: bool,
}

impl ParallelEncoderLayer {
    /// This rank's part of a dense layer that all ranks hold alike. Local.
    ///
    /// # Errors
    /// [`DistError::Config`](crate::DistError::Config) as [`ParallelAttention::from_dense`] and
    /// [`ParallelFeedForward::from_dense`].
    pub fn from_dense(
        dense: &TransformerEncoderLayer,
        parallel: impl Into<TensorParallel>,
    ) -> Result<Self> {
        let parallel = parallel.into();
        let dropout = match parallel.is_sequence_parallel() {
            true => SplitDropout::split(&dense.dropout, &parallel, 1)?,
            false => SplitDropout::whole(&dense.dropout, &parallel)?,
        };
        Ok(Self {
            mha: ParallelAttention::from_dense(&dense.mha, &parallel)?,
            pwff: ParallelFeedForward::from_dense(&dense.pwff, &parallel)?,
            norm_1: SequenceParallel::new(dense.norm_1.clone(), &parallel),
            norm_2: SequenceParallel::new(dense.norm_2.clone(), &parallel),
            dropout,
            norm_first: dense.norm_first,
        })
    }

    /// The dense layer. Collective: all_gathers.
    ///
    /// # Errors
    /// What the group met.
    pub fn to_dense(&self) -> Result<TransformerEncoderLayer> {
        let device = self.pwff.linear_outer.weight.base().device();
        let config = TransformerEncoderConfig::new(1, 1, 1, 1);
        let mut dense = TransformerEncoderLayer::new(&config, &device);
        dense.mha = self.mha.to_dense()?;
        dense.pwff = self.pwff.to_dense()?;
        dense.norm_1 = self.norm_1.layer.clone();
        dense.norm_2 = self.norm_2.layer.clone();
        dense.dropout = self.dropout.dense().clone();
        dense.norm_first = self.norm_first;
        Ok(dense)
    }

    /// `[b, s, h] -> [b, s, h]`, or `[b, s/n, h]` in and out where activations are split along the sequence.
    /// Masks are those of the whole sequence.
    ///
    /// # Errors
    /// As the linear layers.
    #[track_caller]
    pub fn forward(
        &self,
        input: Tensor<3>,
        mask_pad: Option<Tensor<2, Bool>>,
        mask_attn: Option<Tensor<3, Bool>>,
    ) -> Result<Tensor<3>> {
        let before = match self.norm_first {
            true => self.norm_2.forward(input.clone())?,
            false => input.clone(),
        };
        let mut attention = AttentionInput::self_attn(before);
        if let Some(mask) = mask_pad {
            attention = attention.mask_pad(mask);
        }
        if let Some(mask) = mask_attn {
            attention = attention.mask_attn(mask);
        }
        let attended = self.mha.forward(attention)?.context;
        let mut x = input + self.dropout.forward(attended);
        let between = match self.norm_first {
            true => self.norm_1.forward(x.clone())?,
            false => {
                x = self.norm_1.forward(x)?;
                x.clone()
            }
        };
        let fed = self.pwff.forward(between)?;
        let x = x + self.dropout.forward(fed);
        match self.norm_first {
            true => Ok(x),
            false => self.norm_2.forward(x),
        }
    }
}
