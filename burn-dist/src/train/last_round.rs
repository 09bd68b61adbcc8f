//! [`LastRound`]: ranks that have no batch left while others do.

/// What ranks do that have no batch left in an epoch while others have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LastRound {
    /// They take part in the step without one: the gradient is that of the batches that are there.
    /// Not for models whose forward pass calls other ranks.
    #[default]
    WithoutInput,
    /// Batches of an incomplete round are left out on all ranks.
    Drop,
    /// They compute one of the epoch's first batches again. It counts in the gradient, not in metrics.
    Repeat,
}
