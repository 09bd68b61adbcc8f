//! [`GradientEvent`]: what happened in a step, in order.

/// One entry of a step's trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GradientEvent {
    /// The backward pass produced a gradient of this parameter.
    Ready {
        /// The parameter's number, in visiting order.
        parameter: usize,
    },
    /// A bucket's all-reduce was started.
    Launched {
        /// The bucket's number.
        bucket: usize,
    },
}
