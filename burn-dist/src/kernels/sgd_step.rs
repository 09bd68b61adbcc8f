//! [`SgdStep`]: one step of gradient descent with momentum on one element after the other.

use super::vectors::vectorised;
use super::{KernelFloat, WideFloat};

/// One step of gradient descent with momentum over flat arrays: parameter, gradient and velocity are read once
/// and written once.
///
/// With `g` the gradient times `gradient_scale`, plus `penalty p`:
/// `v = (1 - dampening) g + momentum v`, at first `v = g`; `p = p - lr v`, or with Nesterov's
/// `p = p - lr (momentum v + g)`; each operation rounded on its own and in the order of Burn's `Sgd`. (Sutskever
/// et al., "On the importance of initialization and momentum in deep learning", 2013.)
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdStep {
    /// lr: learning rate.
    pub lr: f64,
    /// What stays of the velocity.
    pub momentum: f32,
    /// What of a gradient does not go into the velocity.
    pub dampening: f64,
    /// Whether parameters go along the velocity that comes next.
    pub nesterov: bool,
    /// Of parameters' squares.
    pub penalty: Option<f32>,
    /// Whether there is no velocity yet.
    pub is_first: bool,
    /// What gradients are multiplied by first: 1, a clip coefficient, the inverse of a loss scale.
    pub gradient_scale: f64,
}

/// The numbers of a step as a kernel takes them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdScalars<W> {
    /// `gradient_scale`
    pub scale: W,
    /// `penalty`, or 0
    pub penalty: W,
    /// `1 - dampening`
    pub take: W,
    /// `momentum`
    pub keep: W,
    /// `lr`
    pub lr: W,
}

impl SgdStep {
    /// The numbers in the element type.
    pub fn scalars<W: WideFloat>(&self) -> SgdScalars<W> {
        SgdScalars {
            scale: W::from_f64(self.gradient_scale),
            penalty: W::from_f64(self.penalty.unwrap_or(0.0).into()),
            take: W::from_f64(1.0 - self.dampening),
            keep: W::from_f64(self.momentum.into()),
            lr: W::from_f64(self.lr),
        }
    }

    /// Steps `parameters`, with the velocities, which are not read at first.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn run<E: KernelFloat>(&self, parameters: &mut [E], gradients: &[E], velocities: &mut [E]) {
        let others = [gradients.len(), velocities.len()];
        assert_eq!(others, [parameters.len(); 2], "arrays of one length");
        let s = self.scalars::<E::Wide>();
        let arrays = parameters.iter_mut().zip(gradients).zip(velocities);
        vectorised(|| {
            for ((p, g), v) in arrays {
                let wide = p.widen();
                let mut g = g.widen() * s.scale;
                // A sum with 0 would lose the sign of a gradient of -0.0.
                if self.penalty.is_some() {
                    g = wide * s.penalty + g;
                }
                let velocity = match self.is_first {
                    true => g,
                    false => g * s.take + v.widen() * s.keep,
                };
                *v = E::narrow(velocity);
                let along = match self.nesterov {
                    true => velocity * s.keep + g,
                    false => velocity,
                };
                *p = E::narrow(wide - along * s.lr);
            }
        });
    }
}
