//! [`RandomPosition`]: where in training a number is drawn.

/// A point of a [`RandomStream`](super::RandomStream). Two draws at equal points are equal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RandomPosition {
    /// Optimizer step.
    pub step: u64,
    /// Micro-batch of the step.
    pub micro_batch: u64,
    /// Draws since the micro-batch began.
    pub draw: u64,
}
