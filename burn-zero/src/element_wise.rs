//! [`ElementWise`]: optimizers whose step on an element does not look at its neighbours.

use burn::optim::{AdaGrad, Adam, AdamW, Adan, Lion, Optimizer, RmsProp, Sgd};
use burn_dist::fused::{FusedAdamW, FusedSgd, GradientScale};

/// An optimizer that gives the same numbers whether it sees a parameter whole or in pieces.
///
/// Its step on an element depends on that element's value, gradient and state only, so that its state
/// can be cut anywhere. LAMB, Adafactor and Muon look at a whole parameter and are not of this kind.
/// Implement it for an optimizer of your own if that holds.
pub trait ElementWise: Optimizer {
    /// Where to put a number that gradients are multiplied by in the optimizer's own pass, if it has one.
    fn gradient_scale(&self) -> Option<GradientScale> {
        None
    }
}

impl ElementWise for FusedAdamW {
    fn gradient_scale(&self) -> Option<GradientScale> {
        Some(self.gradient_scale().clone())
    }
}

impl ElementWise for FusedSgd {
    fn gradient_scale(&self) -> Option<GradientScale> {
        Some(self.gradient_scale().clone())
    }
}

impl ElementWise for AdamW {}
impl ElementWise for Adam {}
impl ElementWise for Adan {}
impl ElementWise for Lion {}
impl ElementWise for Sgd {}
impl ElementWise for RmsProp {}
impl ElementWise for AdaGrad {}
