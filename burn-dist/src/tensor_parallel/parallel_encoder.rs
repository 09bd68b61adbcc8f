//! [`ParallelEncoder`]: Burn's transformer encoder, split.

use burn::module::Module;
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig};
use burn::tensor::{Bool, Device, Tensor};

use super::{ParallelEncoderLayer, TensorParallel};
use crate::error::Result;

/// Burn's `TransformerEncoder` with every layer split, in place of one in any model: whole activations in
/// and out. With sequence parallelism they are split behind the first edge and joined before the last.
#[derive(Module, Debug)]
pub struct ParallelEncoder {
    /// The layers.
    pub layers: Vec<ParallelEncoderLayer>,
    /// The dense encoder without its layers.
    #[module(skip)]
    dense: TransformerEncoder,
    #[module(skip)]
    parallel: TensorParallel,
}

impl ParallelEncoder {
    /// This rank's part of a dense encoder that all ranks hold alike. Local.
    ///
    /// # Errors
    /// As [`ParallelEncoderLayer::from_dense`].
    pub fn from_dense(
        dense: &TransformerEncoder,
        parallel: impl Into<TensorParallel>,
    ) -> Result<Self> {
        let parallel = parallel.into();
        let layers = dense.layers.iter();
        let layers = layers.map(|layer| ParallelEncoderLayer::from_dense(layer, &parallel));
        Ok(Self {
            layers: layers.collect::<Result<_>>()?,
            dense: TransformerEncoder {
                layers: Vec::new(),
                ..dense.clone()
            },
            parallel,
        })
    }

    /// This rank's part of the encoder that Burn's config draws from the same seed, without ever holding it
    /// whole. Local.
    ///
    /// # Errors
    /// As [`ParallelEncoderLayer::init`].
    pub fn init(
        config: &TransformerEncoderConfig,
        parallel: impl Into<TensorParallel>,
        device: &Device,
    ) -> Result<Self> {
        let parallel = parallel.into();
        let layer = |_| ParallelEncoderLayer::init(config, &parallel, device);
        let mut none = config.clone();
        none.n_layers = 0;
        let mut dense = none.init(device);
        dense.n_layers = config.n_layers;
        Ok(Self {
            layers: (0..config.n_layers).map(layer).collect::<Result<_>>()?,
            dense,
            parallel,
        })
    }

    /// The dense encoder. Collective: all_gathers.
    ///
    /// # Errors
    /// What the group met.
    pub fn to_dense(&self) -> Result<TransformerEncoder> {
        let mut dense = self.dense.clone();
        for layer in &self.layers {
            dense.layers.push(layer.to_dense()?);
        }
        Ok(dense)
    }

    /// `[b, s, h] -> [b, s, h]`.
    ///
    /// # Errors
    /// A sequence that the ranks do not divide, where activations are split along it, before anything is
    /// sent; else as the linear layers.
    #[track_caller]
    pub fn forward(
        &self,
        input: Tensor<3>,
        mask_pad: Option<Tensor<2, Bool>>,
        mask_attn: Option<Tensor<3, Bool>>,
    ) -> Result<Tensor<3>> {
        let mut x = self.parallel.split_sequence(input)?;
        for layer in &self.layers {
            x = layer.forward(x, mask_pad.clone(), mask_attn.clone())?;
        }
        self.parallel.join_sequence(x)
    }
}
