//! [`Norm`]: what stands between a convolution and its activation.

use clap::ValueEnum;

/// Normalization of feature maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Norm {
    /// Burn's `BatchNorm`
    Batch,
    /// The same over the batches of all ranks
    Sync,
    /// Nothing
    None,
}
