//! [`GradientHook`] and [`GradientSink`]: a parameter's gradient, the moment it is ready.

use std::sync::Arc;

use crate::communicator::HostBuffer;
use crate::error::Result;

/// Takes gradients as the backward pass produces them.
///
/// Called on the thread that runs the backward pass, under the autodiff graph's lock: an
/// implementation must neither wait for another rank nor run a backward pass.
pub trait GradientSink: std::fmt::Debug + Send + Sync {
    /// A tracked use of the parameter was recorded in a forward pass; returns the use's number.
    fn used(&self, parameter: usize) -> u64;

    /// The gradient of one use: the sink owns it from here on; the leaf gets none.
    fn ready(&self, parameter: usize, use_number: u64, gradient: Result<HostBuffer>);
}

/// One parameter's place at a [`GradientSink`].
#[derive(Debug, Clone)]
pub struct GradientHook {
    sink: Arc<dyn GradientSink>,
    parameter: usize,
}

impl GradientHook {
    /// A hook that delivers to `sink` under the number `parameter`.
    pub fn new(sink: Arc<dyn GradientSink>, parameter: usize) -> Self {
        Self { sink, parameter }
    }

    /// Records a use; its gradient will come to what is returned.
    pub(super) fn used(self) -> HookedUse {
        let use_number = self.sink.used(self.parameter);
        HookedUse {
            hook: self,
            use_number,
        }
    }
}

/// One use of a hooked parameter in a forward pass.
#[derive(Debug, Clone)]
pub(super) struct HookedUse {
    hook: GradientHook,
    use_number: u64,
}

impl HookedUse {
    pub(super) fn ready(&self, gradient: Result<HostBuffer>) {
        let GradientHook { sink, parameter } = &self.hook;
        sink.ready(*parameter, self.use_number, gradient);
    }
}
