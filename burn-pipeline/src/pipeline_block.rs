//! [`PipelineBlock`]: one of the consecutive parts that a model is a list of.

use burn::module::{Module, ModuleDisplay};
use burn_dist::Result;

use crate::Activation;

/// A block of a model that is a list of blocks: the first one makes activations from the batch (an
/// embedding), the last one a loss (a head with its loss). An enum of modules is one, and so is a module.
pub trait PipelineBlock: Module + ModuleDisplay {
    /// A micro-batch, which every rank has: inputs and targets.
    type Batch;

    /// `input` is what the block before this one gave, nothing for the model's first block. The model's last
    /// block gives one float tensor of one element: the mean loss of the micro-batch.
    ///
    /// # Errors
    /// What the block met: every rank of the pipeline then ends with it.
    fn forward(&self, input: Vec<Activation>, batch: &Self::Batch) -> Result<Vec<Activation>>;
}
