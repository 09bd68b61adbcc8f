//! [`FusedSgdState`]: what gradient descent with momentum keeps of a parameter.

use burn::optim::{RecordState, StateSink, StateSource, join_path};
use burn::tensor::{Device, Tensor};

/// The state of [`FusedSgd`](super::FusedSgd): in checkpoints that of Burn's `Sgd`.
#[derive(Debug, Clone)]
pub struct FusedSgdState<const D: usize> {
    /// `[..]`, as the parameter; `None` before the first step and without momentum.
    pub velocity: Option<Tensor<D>>,
}

/// Where Burn's state keeps it.
const MOMENTUM: &str = "momentum";
const VELOCITY: &str = "velocity";

impl<const D: usize> RecordState for FusedSgdState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        if let Some(velocity) = &self.velocity {
            let prefix = join_path(prefix, MOMENTUM);
            out.push_tensor(&prefix, VELOCITY, velocity.clone().into_data());
        }
    }

    fn state_unflatten(prefix: &str, src: &mut StateSource, device: &Device) -> Option<Self> {
        let data = src.take_tensor(&join_path(prefix, MOMENTUM), VELOCITY);
        let velocity = data.map(|data| Tensor::from_data(data, device));
        Some(Self { velocity })
    }
}
