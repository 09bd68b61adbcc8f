//! [`GatedFeedForward`]: a feed-forward with a gate, split by its inner features.

use burn::config::Config;
use burn::module::Module;
use burn::nn::activation::{Activation, ActivationConfig};
use burn::nn::{Initializer, Linear};
use burn::tensor::activation::silu;
use burn::tensor::{Device, Tensor};

use super::{
    ColumnParallelLinear, ColumnParallelLinearConfig, RowParallelLinear, RowParallelLinearConfig,
    TensorParallel, parallel_feed_forward::check,
};
use crate::error::Result;

/// `FFN(X) = (act(X G) * X U) D`, as in Llama with SiLU: gate `G` and up `U` are one
/// [`ColumnParallelLinear`] of two sections, down `D` is a [`RowParallelLinear`]. (GLU variants, arXiv
/// 2002.05202, section 2.)
#[derive(Module, Debug)]
pub struct GatedFeedForward {
    /// `[.., h] -> [.., d/n]` twice.
    pub gate_up: ColumnParallelLinear,
    /// `[.., d/n] -> [.., h]`.
    pub down: RowParallelLinear,
    #[module(skip)]
    activation: Option<Activation>,
}

/// Makes a [`GatedFeedForward`] without dense layers: gate, up and down are drawn in this order.
#[derive(Config, Debug)]
pub struct GatedFeedForwardConfig {
    /// h: input and output features.
    pub d_model: usize,
    /// d: inner features, over all ranks.
    pub d_ff: usize,
    /// Whether the three layers have a bias.
    #[config(default = false)]
    pub bias: bool,
    /// How parameters are drawn.
    #[config(
        default = "Initializer::KaimingUniform{gain: 1.0 / 3f64.sqrt(), fan_out_only: false}"
    )]
    pub initializer: Initializer,
    /// Of each feature of the gate on its own; `None` is SiLU, `x sigmoid(x)`.
    pub activation: Option<ActivationConfig>,
}

impl GatedFeedForwardConfig {
    /// This rank's part, with the values that three `LinearConfig`s draw from the same seed. Local.
    ///
    /// # Errors
    /// [`DistError::Config`](crate::DistError::Config) as the linear layers, and for an activation with
    /// parameters.
    pub fn init(
        &self,
        parallel: impl Into<TensorParallel>,
        device: &Device,
    ) -> Result<GatedFeedForward> {
        let parallel = parallel.into();
        let activation = self.activation.as_ref();
        let activation = activation.map(|activation| activation.init(device));
        activation.as_ref().map_or(Ok(()), check)?;
        Ok(GatedFeedForward {
            gate_up: ColumnParallelLinearConfig::new(self.d_model, vec![self.d_ff; 2])
                .with_bias(self.bias)
                .with_initializer(self.initializer.clone())
                .init(&parallel, device)?,
            down: RowParallelLinearConfig::new(self.d_ff, self.d_model)
                .with_bias(self.bias)
                .with_initializer(self.initializer.clone())
                .init(&parallel, device)?,
            activation,
        })
    }
}

impl GatedFeedForward {
    /// This rank's part of dense layers that all ranks hold alike; `None` is SiLU. Local.
    ///
    /// # Errors
    /// [`DistError::Config`](crate::DistError::Config) if the ranks do not divide the inner features, if
    /// gate and up do not go together, and for an activation with parameters.
    pub fn from_dense(
        [gate, up, down]: [&Linear; 3],
        activation: Option<Activation>,
        parallel: impl Into<TensorParallel>,
    ) -> Result<Self> {
        let parallel = parallel.into();
        activation.as_ref().map_or(Ok(()), check)?;
        Ok(Self {
            gate_up: ColumnParallelLinear::from_dense_sections(&[gate, up], &parallel)?,
            down: RowParallelLinear::from_dense(down, &parallel)?,
            activation,
        })
    }

    /// The dense gate, up and down. Collective: all_gathers.
    ///
    /// # Errors
    /// What the group met.
    pub fn to_dense(&self) -> Result<[Linear; 3]> {
        let mut gate_up = self.gate_up.to_dense_sections()?;
        let up = gate_up.swap_remove(1);
        let gate = gate_up.swap_remove(0);
        Ok([gate, up, self.down.to_dense()?])
    }

    /// `[b, s, h] -> [b, s, h]`, or `[b, s/n, h]` in and out where activations are split along the sequence.
    ///
    /// # Errors
    /// As the linear layers.
    #[track_caller]
    pub fn forward(&self, input: Tensor<3>) -> Result<Tensor<3>> {
        let mut sections = self.gate_up.forward_sections(input)?;
        let up = sections.swap_remove(1);
        let gate = sections.swap_remove(0);
        let gate = match &self.activation {
            Some(activation) => activation.forward(gate),
            None => silu(gate),
        };
        self.down.forward(gate * up)
    }
}
