//! [`Training`]: what the loop needs of a way to train.

use burn::module::Module;
use burn_dist::Result;
use burn_pipeline::ActionSpan;

use crate::gpt::Gpt;

/// A model on its ranks, and how an optimizer step comes about.
pub(super) trait Training {
    /// What a rank holds of the model.
    type Model: Module;

    /// Losses of this rank's micro-batches, one list per rank that it computes for, and the model after
    /// the step. Collective.
    fn step(
        &mut self,
        model: Self::Model,
        micro_batches: &[Vec<Vec<u8>>],
    ) -> Result<(Vec<Vec<f32>>, Self::Model)>;

    /// When the actions of the last step ran, if a pipeline ran it.
    fn actions(&self) -> &[ActionSpan] {
        &[]
    }

    /// Bytes that all ranks together send in the whole run, by formula. Collective.
    fn formula(&self, model: &Self::Model) -> Result<u64>;

    /// The whole model, of one that is not sharded any more. Collective.
    fn whole(&self, model: &Self::Model) -> Result<Gpt>;
}
