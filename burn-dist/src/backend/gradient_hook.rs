//! [`GradientHook`] and [`GradientSink`]: a parameter's gradient, the moment it is ready.

use std::sync::Arc;

use super::DeviceArray;

/// Takes gradients as the backward pass produces them.
///
/// Called on the thread that runs the backward pass, under the autodiff graph's lock: an implementation
/// may wait for other ranks, each of which has a graph of its own, but must not run a backward pass.
pub trait GradientSink: std::fmt::Debug + Send + Sync {
    /// A tracked use of the parameter was recorded in a forward pass.
    fn used(&self, parameter: usize);

    /// The gradient of one use: the sink owns it from here on; the leaf gets none.
    fn ready(&self, parameter: usize, gradient: DeviceArray);
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
        self.sink.used(self.parameter);
        HookedUse(self)
    }
}

/// One use of a hooked parameter in a forward pass.
#[derive(Debug, Clone)]
pub(super) struct HookedUse(GradientHook);

impl HookedUse {
    pub(super) fn ready(&self, gradient: DeviceArray) {
        self.0.sink.ready(self.0.parameter, gradient);
    }
}
