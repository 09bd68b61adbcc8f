//! [`LanguageModel`]: what the trainer needs of a model.

use burn::module::Module;
use burn::tensor::{Int, Tensor};
use burn_dist::Result;

use crate::gpt::{Gpt, ParallelGpt};

/// A model with a loss, whole or split.
pub(super) trait LanguageModel: Module {
    /// `[B, T], [B, T] -> [1]`: the mean loss of the targets.
    fn mean_loss(&self, tokens: Tensor<2, Int>, targets: Tensor<2, Int>) -> Result<Tensor<1>>;

    /// The whole model. Collective.
    fn whole(&self) -> Result<Gpt>;
}

impl LanguageModel for Gpt {
    fn mean_loss(&self, tokens: Tensor<2, Int>, targets: Tensor<2, Int>) -> Result<Tensor<1>> {
        Ok(self.loss(tokens, targets))
    }

    fn whole(&self) -> Result<Gpt> {
        Ok(self.clone())
    }
}

impl LanguageModel for ParallelGpt {
    fn mean_loss(&self, tokens: Tensor<2, Int>, targets: Tensor<2, Int>) -> Result<Tensor<1>> {
        self.loss(tokens, targets)
    }

    fn whole(&self) -> Result<Gpt> {
        self.to_dense()
    }
}
