//! [`GradientScale`]: a number for a fused optimizer's next steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a fused optimizer multiplies gradients by in its own pass, 1 at first: a clip coefficient, or the
/// inverse of a loss scale, without a pass of their own. Clones of a scale share the number.
#[derive(Debug, Clone)]
pub struct GradientScale(Arc<AtomicU64>);

impl Default for GradientScale {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(1f64.to_bits())))
    }
}

impl GradientScale {
    /// For all steps from now on.
    pub fn set(&self, scale: f64) {
        self.0.store(scale.to_bits(), Ordering::Relaxed);
    }

    /// The number.
    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}
