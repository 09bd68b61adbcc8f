//! [`BackwardMark`] and [`MarkTensor`]: a place in the backward pass.

use std::sync::Arc;

use burn::tensor::{Device, Tensor};

use super::ParameterSource;

/// What a source is told when the backward pass comes to a mark.
#[derive(Debug, Clone)]
pub enum BackwardMark {
    /// [`ParameterSource::end_unit`].
    Unit(Arc<dyn ParameterSource>, usize),
    /// [`ParameterSource::end_pass`].
    Pass(Arc<dyn ParameterSource>),
}

/// A tracked node that carries no gradient. What is made with it runs before it in a backward pass.
///
/// Burn runs a backward pass by depth: all uses of a unit have the depth of its mark plus one, so that
/// the mark runs when the last of them has, whichever of them the loss depends on.
#[derive(Debug, Clone)]
pub struct MarkTensor(pub(super) Tensor<1>);

impl MarkTensor {
    /// The leaf below all marks of a model. Ranks that are threads need one each.
    pub fn anchor(device: &Device) -> Self {
        Self(Tensor::zeros([1], device).require_grad())
    }
}
