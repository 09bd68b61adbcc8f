//! [`ParallelEncoderLayer`]: Burn's transformer encoder layer, split.

use burn::module::Module;
use burn::nn::transformer::{TransformerEncoderConfig, TransformerEncoderLayer};
use burn::nn::{Dropout, DropoutConfig, LayerNorm, LayerNormConfig};
use burn::tensor::{Bool, Device, Tensor};

use super::{
    AttentionInput, ParallelAttention, ParallelAttentionConfig, ParallelFeedForward,
    ParallelFeedForwardConfig, SequenceParallel, SplitDropout, TensorParallel,
};
use crate::error::Result;

/// Burn's `TransformerEncoderLayer` with heads and inner features split. Forward two all_reduces, backward two:
/// `8bsh(n-1)/n` elements sent per layer and micro-batch. With sequence parallelism four collectives each way
/// that send as much, and `8h(n-1)/n` for the gradients of the norms' vectors; with
/// [`regather`](super::TensorParallel::regather) `10bsh(n-1)/n`.
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

fn residual_dropout(dropout: &Dropout, parallel: &TensorParallel) -> Result<SplitDropout> {
    match parallel.is_sequence_parallel() {
        true => SplitDropout::split(dropout, parallel, 1),
        false => SplitDropout::whole(dropout, parallel),
    }
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
        let dropout = residual_dropout(&dense.dropout, &parallel)?;
        Ok(Self {
            mha: ParallelAttention::from_dense(&dense.mha, &parallel)?,
            pwff: ParallelFeedForward::from_dense(&dense.pwff, &parallel)?,
            norm_1: SequenceParallel::new(dense.norm_1.clone(), &parallel),
            norm_2: SequenceParallel::new(dense.norm_2.clone(), &parallel),
            dropout,
            norm_first: dense.norm_first,
        })
    }

    /// This rank's part of the layer that Burn's config draws from the same seed, without ever holding it
    /// whole. Local.
    ///
    /// # Errors
    /// As [`from_dense`](Self::from_dense), and for an initializer that cannot draw in parts.
    pub fn init(
        config: &TransformerEncoderConfig,
        parallel: impl Into<TensorParallel>,
        device: &Device,
    ) -> Result<Self> {
        let parallel = parallel.into();
        let norm = || {
            let norm = LayerNormConfig::new(config.d_model).with_epsilon(config.layer_norm_eps);
            SequenceParallel::new(norm.init(device), &parallel)
        };
        let dropout = DropoutConfig::new(config.dropout).init();
        Ok(Self {
            mha: ParallelAttentionConfig::new(config.d_model, config.n_heads)
                .with_initializer(config.initializer.clone())
                .with_dropout(config.dropout)
                .with_quiet_softmax(config.quiet_softmax)
                .init(&parallel, device)?,
            pwff: ParallelFeedForwardConfig::new(config.d_model, config.d_ff)
                .with_initializer(config.initializer.clone())
                .with_dropout(config.dropout)
                .with_activation(config.activation.clone())
                .init(&parallel, device)?,
            norm_1: norm(),
            norm_2: norm(),
            dropout: residual_dropout(&dropout, &parallel)?,
            norm_first: config.norm_first,
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
