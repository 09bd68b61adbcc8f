//! [`LossScale`]: keeps small gradients of f16 from vanishing.

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn_dist::Result;
use burn_dist::data_parallel::scale_gradients;

use crate::ModelParallel;
use crate::clip_grad_norm::total;

/// A factor on the loss, taken off the gradients again; it halves when a gradient overflows, and doubles
/// after a while without.
///
/// All ranks hold the same scale and see the same decisions: an overflow on one rank skips the step and
/// halves the scale on all.
///
/// ([Micikevicius et al., arXiv 1710.03740](https://arxiv.org/abs/1710.03740), section 3.2.)
#[derive(Debug, Clone, PartialEq)]
pub struct LossScale {
    /// The factor now: a power of two, so that no bit is lost.
    pub scale: f64,
    /// Steps without overflow after which the scale doubles.
    pub growth_interval: usize,
    /// Steps without overflow so far.
    pub good_steps: usize,
}

/// Below, its inverse leaves the range of 16- and soon of 32-bit floats.
const SMALLEST: f64 = 1.0 / (1 << 14) as f64;

impl Default for LossScale {
    /// 65536, doubled every 2000 steps, as in PyTorch.
    fn default() -> Self {
        Self {
            scale: 65536.0,
            growth_interval: 2000,
            good_steps: 0,
        }
    }
}

impl LossScale {
    /// The loss to run backward from.
    pub fn scale<const D: usize>(&self, loss: Tensor<D>) -> Tensor<D> {
        loss.mul_scalar(self.scale)
    }

    /// Takes the scale off gradients that are whole on this rank; `None` if one of them is not finite:
    /// then skip the step. Local; ranks that hold the same gradients decide alike.
    ///
    /// # Errors
    /// [`DistError::Config`](burn_dist::DistError::Config) if a layer is split over ranks: see
    /// [`unscale_over`](Self::unscale_over).
    pub fn unscale<M: Module>(
        &mut self,
        gradients: GradientsParams,
        model: &M,
    ) -> Result<Option<GradientsParams>> {
        self.unscale_over(gradients, model, &ModelParallel::new())
    }

    /// As [`unscale`](Self::unscale), for a model whose layers are split over ranks, which decide together.
    /// Collective: a small all_reduce over each group.
    ///
    /// # Errors
    /// [`DistError::Config`](burn_dist::DistError::Config) for a parameter that is split over another
    /// group; else what a group met.
    pub fn unscale_over<M: Module>(
        &mut self,
        mut gradients: GradientsParams,
        model: &M,
        model_parallel: &ModelParallel,
    ) -> Result<Option<GradientsParams>> {
        let overflow = total(&gradients, model, model_parallel)?.num_not_finite() > 0;
        Ok(self.decide(overflow).map(|factor| {
            scale_gradients(&mut gradients, model, factor);
            gradients
        }))
    }

    /// What to multiply gradients by, or `None` to skip the step; adapts the scale.
    pub(crate) fn decide(&mut self, overflow: bool) -> Option<f64> {
        if overflow {
            self.scale = (self.scale / 2.0).max(SMALLEST);
            self.good_steps = 0;
            return None;
        }
        let factor = 1.0 / self.scale;
        self.good_steps += 1;
        if self.good_steps >= self.growth_interval {
            self.scale *= 2.0;
            self.good_steps = 0;
        }
        Some(factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_halves_at_once_and_doubles_after_a_while() {
        let mut scale = LossScale {
            scale: 8.0,
            growth_interval: 2,
            good_steps: 0,
        };
        assert_eq!(scale.decide(false), Some(1.0 / 8.0));
        assert_eq!(scale.decide(true), None);
        assert_eq!((scale.scale, scale.good_steps), (4.0, 0));
        assert_eq!(scale.decide(false), Some(0.25));
        assert_eq!(scale.decide(false), Some(0.25));
        assert_eq!((scale.scale, scale.good_steps), (8.0, 0));
        (0..500).for_each(|_| assert_eq!(scale.decide(true), None));
        assert_eq!(scale.scale, SMALLEST);
    }
}
