//! [`ParallelFeedForward`]: Burn's position-wise feed-forward, split by its inner features.

use burn::config::Config;
use burn::module::Module;
use burn::nn::activation::{Activation, ActivationConfig};
use burn::nn::transformer::{PositionWiseFeedForward, PositionWiseFeedForwardConfig};
use burn::nn::{DropoutConfig, Initializer};
use burn::tensor::{Device, Tensor};

use super::{
    ColumnParallelLinear, ColumnParallelLinearConfig, RowParallelLinear, RowParallelLinearConfig,
    SplitDropout, TensorParallel,
};
use crate::error::{DistError, Result};

/// `FFN(X) = dropout(act(X W + b)) W' + b'`, inner features split: a
/// [`ColumnParallelLinear`] and a [`RowParallelLinear`], and so one collective forward and one backward, two each
/// where activations are split along the sequence.
/// (Megatron-LM, arXiv 1909.08053, equation 3.)
#[derive(Module, Debug)]
pub struct ParallelFeedForward {
    /// `[.., h] -> [.., d/n]`.
    pub linear_inner: ColumnParallelLinear,
    /// `[.., d/n] -> [.., h]`.
    pub linear_outer: RowParallelLinear,
    /// On the inner features.
    pub dropout: SplitDropout,
    #[module(skip)]
    activation: Activation,
}

/// Makes a [`ParallelFeedForward`] without its dense module.
#[derive(Config, Debug)]
pub struct ParallelFeedForwardConfig {
    /// h: input and output features.
    pub d_model: usize,
    /// d: inner features, over all ranks.
    pub d_ff: usize,
    /// Dropout on the inner features.
    #[config(default = 0.1)]
    pub dropout: f64,
    /// How parameters are drawn.
    #[config(
        default = "Initializer::KaimingUniform{gain: 1.0 / 3f64.sqrt(), fan_out_only: false}"
    )]
    pub initializer: Initializer,
    /// Of each inner feature on its own.
    #[config(default = "ActivationConfig::Gelu")]
    pub activation: ActivationConfig,
}

impl ParallelFeedForwardConfig {
    /// This rank's part, with the values that Burn's config draws from the same seed. Local.
    ///
    /// # Errors
    /// [`DistError::Config`] as the linear layers and [`ParallelFeedForward::from_dense`].
    pub fn init(
        &self,
        parallel: impl Into<TensorParallel>,
        device: &Device,
    ) -> Result<ParallelFeedForward> {
        let parallel = parallel.into();
        let activation = self.activation.init(device);
        check(&activation)?;
        let dropout = DropoutConfig::new(self.dropout).init();
        Ok(ParallelFeedForward {
            linear_inner: ColumnParallelLinearConfig::new(self.d_model, vec![self.d_ff])
                .with_initializer(self.initializer.clone())
                .init(&parallel, device)?,
            linear_outer: RowParallelLinearConfig::new(self.d_ff, self.d_model)
                .with_initializer(self.initializer.clone())
                .init(&parallel, device)?,
            dropout: inner_dropout(&dropout, &parallel)?,
            activation,
        })
    }
}

fn inner_dropout(dropout: &burn::nn::Dropout, parallel: &TensorParallel) -> Result<SplitDropout> {
    // Activations are [b, s, d/n].
    SplitDropout::split(dropout, parallel, 2)
}

/// Refuses activations that mix features or have parameters: Burn keeps those outside of its records, too.
pub(super) fn check(activation: &Activation) -> Result<()> {
    let name = match activation {
        Activation::SwiGlu(_) => "SwiGlu",
        Activation::PRelu(_) => "PRelu",
        _ => return Ok(()),
    };
    Err(DistError::config(
        format!("{name} inside of a feed-forward has parameters that are not split"),
        "build the feed-forward from ColumnParallelLinear and RowParallelLinear, or take GatedFeedForward",
    ))
}

impl ParallelFeedForward {
    /// This rank's part of a dense module that all ranks hold alike. Local.
    ///
    /// # Errors
    /// [`DistError::Config`] if the ranks do not divide the inner features, for an activation with
    /// parameters, and for dropout without a random stream.
    pub fn from_dense(
        dense: &PositionWiseFeedForward,
        parallel: impl Into<TensorParallel>,
    ) -> Result<Self> {
        let parallel = parallel.into();
        check(&dense.activation)?;
        Ok(Self {
            linear_inner: ColumnParallelLinear::from_dense(&dense.linear_inner, &parallel)?,
            linear_outer: RowParallelLinear::from_dense(&dense.linear_outer, &parallel)?,
            dropout: inner_dropout(&dense.dropout, &parallel)?,
            activation: dense.activation.clone(),
        })
    }

    /// The dense module. Collective: all_gathers.
    ///
    /// # Errors
    /// What the group met.
    pub fn to_dense(&self) -> Result<PositionWiseFeedForward> {
        let device = self.linear_inner.weight.base().device();
        let mut dense = PositionWiseFeedForwardConfig::new(1, 1).init(&device);
        dense.linear_inner = self.linear_inner.to_dense()?;
        dense.linear_outer = self.linear_outer.to_dense()?;
        dense.dropout = self.dropout.dense().clone();
        dense.activation = self.activation.clone();
        Ok(dense)
    }

    /// `[b, s, h] -> [b, s, h]`, or `[b, s/n, h]` in and out where activations are split along the sequence.
    ///
    /// # Errors
    /// As the linear layers.
    #[track_caller]
    pub fn forward(&self, input: Tensor<3>) -> Result<Tensor<3>> {
        let inner = self.activation.forward(self.linear_inner.forward(input)?);
        self.linear_outer.forward(self.dropout.forward(inner))
    }
}
