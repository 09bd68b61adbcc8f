//! [`MapNorm`]: a normalization of feature maps.

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::tensor::{Device, Tensor};
use burn_dist::ProcessGroup;
use burn_dist::batch_norm::SyncBatchNorm;

use super::Norm;

/// What [`Norm`] names.
#[derive(Module, Debug)]
pub(super) enum MapNorm {
    Batch(BatchNorm),
    Sync(SyncBatchNorm),
}

impl MapNorm {
    /// For maps of so many channels; nothing if that is what `norm` says.
    pub(super) fn new(norm: Norm, channels: usize, device: &Device) -> Option<Self> {
        let layer = BatchNormConfig::new(channels).init(device);
        match norm {
            Norm::Batch => Some(Self::Batch(layer)),
            Norm::Sync => Some(Self::Sync(layer.into())),
            Norm::None => None,
        }
    }

    /// Normalizes with other ranks, if it is of that kind.
    pub(super) fn over(self, group: &ProcessGroup) -> Self {
        match self {
            Self::Batch(layer) => Self::Batch(layer),
            Self::Sync(layer) => Self::Sync(layer.over(group)),
        }
    }

    /// `[B, C, H, W] -> [B, C, H, W]`; a failure of the ranks ends the step, and the trainer says why.
    pub(super) fn forward(&self, maps: Tensor<4>) -> Tensor<4> {
        match self {
            Self::Batch(layer) => layer.forward(maps),
            Self::Sync(layer) => {
                let normalized = layer.forward(maps);
                normalized.unwrap_or_else(|error| panic!("{error}"))
            }
        }
    }
}
