//! [`FullySharded`]: what the training loop holds of a wrapped model.

use std::sync::Arc;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Gradients;
use burn_dist::{ProcessGroup, Result};

use super::ShardUnit;
use super::shard_context::ShardContext;
use crate::ShardLayout;

/// Gradients, accumulation and errors of a model that [`FullyShard`](crate::FullyShard) wrapped.
#[derive(Debug)]
pub struct FullySharded {
    context: Arc<ShardContext>,
}

impl FullySharded {
    pub(crate) fn new(context: Arc<ShardContext>) -> Self {
        Self { context }
    }

    /// The ranks that a parameter is split over.
    pub fn group(&self) -> &ProcessGroup {
        &self.context.groups.shard
    }

    /// The units: first those that are split, in the order of [`layout`](Self::layout), then those of
    /// parameters that stay whole.
    pub fn units(&self) -> &[ShardUnit] {
        &self.context.units
    }

    /// Which rank holds which elements; prints as a map. Parameters are numbered inside each unit.
    pub fn layout(&self) -> &ShardLayout {
        &self.context.layout
    }

    /// Elements that this rank keeps, padding apart.
    pub fn num_elements(&self) -> usize {
        let layout = self.layout();
        let units = 0..layout.num_units();
        let pieces = units.flat_map(|unit| layout.pieces(unit, self.group().index()));
        let split: usize = pieces.map(|piece| piece.place.len()).sum();
        let parameters = self.context.parameters.iter();
        let whole = parameters.filter(|parameter| self.context.is_whole(parameter.unit));
        split
            + whole
                .map(|parameter| parameter.num_elements())
                .sum::<usize>()
    }

    /// Runs a backward pass whose gradients stay on this rank, whole: they are added up and travel with
    /// the next pass outside. It gathers parameters as any pass does. Local but for that.
    ///
    /// Without it each backward pass reduces its gradients, and the caller adds up shards
    /// (`GradientsAccumulator`): more is sent, less is held.
    pub fn no_sync(&self, backward: impl FnOnce() -> Gradients) {
        struct Restore<'a>(&'a ShardContext, bool);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                self.0.sums().syncing = self.1;
            }
        }
        let before = std::mem::replace(&mut self.context.sums().syncing, false);
        let restore = Restore(&self.context, before);
        drop(backward());
        drop(restore);
    }

    /// This rank's part of the mean gradients, which a backward pass has left. A parameter that no rank
    /// used has none, so that the optimizer leaves it alone.
    ///
    /// # Errors
    /// What the group met, in the forward and backward pass too.
    pub fn gradients<M: Module>(&self, gradients: Gradients, model: &M) -> Result<GradientsParams> {
        self.check()?;
        Ok(GradientsParams::from_grads(gradients, model))
    }

    /// `Err` if the group failed, also inside a forward or backward pass, where an error cannot be
    /// returned and values turn to NaN.
    ///
    /// # Errors
    /// The first failure.
    pub fn check(&self) -> Result<()> {
        let failure = self.context.sums().failure.clone();
        match failure {
            Some(failure) => Err(failure),
            None => self.context.groups.check(),
        }
    }
}
