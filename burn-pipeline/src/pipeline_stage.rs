//! [`PipelineStage`]: consecutive blocks of a model, on one rank.

use std::ops::Range;

use burn::module::Module;
use burn_dist::Result;
use burn_dist::backend::DeferredProducts;

use crate::Activation;

/// A stage: a module that runs some of the blocks that a model consists of.
///
/// Blocks are numbered through the whole model: the first one makes activations from the batch (an
/// embedding), the last one a loss (a head with its loss). A stage without parameters is fine.
pub trait PipelineStage: Module {
    /// A micro-batch, which every rank has: inputs and targets.
    type Batch;

    /// The blocks of this stage, by their numbers in the model.
    fn blocks(&self) -> Range<usize>;

    /// Runs one of the blocks. `input` is what the block before it gave, nothing for the model's first
    /// block. The model's last block gives one float tensor of one element: the mean loss of the
    /// micro-batch.
    ///
    /// # Errors
    /// What the block met: every rank of the pipeline then ends with it.
    fn forward_block(
        &self,
        block: usize,
        input: Vec<Activation>,
        batch: &Self::Batch,
    ) -> Result<Vec<Activation>>;

    /// Where the stage's [`DeferredLinear`](crate::DeferredLinear)s leave their products, if it has any.
    fn deferred_products(&self) -> Option<&DeferredProducts> {
        None
    }
}
