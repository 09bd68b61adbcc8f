//! [`GradientReduction`]: what becomes of the gradients of ranks.

/// What is made of the gradients of ranks. Over micro-steps of one rank they are added up, as Burn's
/// trainer does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GradientReduction {
    /// Their mean over the ranks that have a batch: `n` ranks with batches of `b` are one device with a batch of
    /// `n * b`.
    #[default]
    Mean,
    /// Their sum: `n` ranks are one device with `grads_accumulation(n)`.
    Sum,
}
