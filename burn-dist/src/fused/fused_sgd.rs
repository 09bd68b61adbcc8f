//! [`FusedSgd`]: Burn's gradient descent with momentum in one pass.

use burn::optim::{LearningRate, Optimizer, Sgd, SgdConfig, SgdState};
use burn::tensor::{Device, Tensor};
use serde::Deserialize;

use crate::backend::{self, KernelChoice};
use crate::fused::{FusedSgdState, GradientScale};
use crate::kernels::SgdStep;

/// Burn's `Sgd` as one pass over parameter, gradient and velocity instead of a chain of up to eight tensor
/// operations, in place where nobody else holds them. Its checkpoints are those of `Sgd`.
///
/// On Flex in 32 and 64 bits it has the bits of `Sgd`; 16-bit values are computed in 32 bits and rounded once;
/// other backends differ by what their compilers make of the formula. Without momentum there is nothing to keep,
/// and `Sgd`'s own operations run.
///
/// ```
/// # use burn::optim::{ModuleOptimizer, SgdConfig, momentum::MomentumConfig};
/// # use burn_dist::fused::FusedSgd;
/// let config = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
/// let optimizer = ModuleOptimizer::from(FusedSgd::new(&config));
/// ```
pub struct FusedSgd {
    stock: Sgd,
    momentum: Option<Numbers>,
    penalty: Option<f32>,
    scale: GradientScale,
    choice: KernelChoice,
}

/// What the configuration says, which keeps it to itself.
#[derive(Deserialize)]
struct Config {
    weight_decay: Option<Decay>,
    momentum: Option<Numbers>,
}

#[derive(Deserialize)]
struct Decay {
    penalty: f32,
}

#[derive(Debug, Clone, Deserialize)]
struct Numbers {
    momentum: f64,
    dampening: f64,
    nesterov: bool,
}

impl FusedSgd {
    /// With the numbers of a configuration; as `config.build()`, without its gradient clipping.
    pub fn new(config: &SgdConfig) -> Self {
        let numbers = serde_json::to_value(config).and_then(serde_json::from_value);
        let Config {
            weight_decay,
            momentum,
        } = numbers.expect("invariant: the configuration holds these numbers");
        Self {
            stock: config.build(),
            momentum,
            penalty: weight_decay.map(|decay| decay.penalty),
            scale: GradientScale::default(),
            choice: KernelChoice::Fused,
        }
    }

    /// How steps are carried out: by one kernel, or by a chain of tensor operations.
    pub fn kernels(mut self, choice: KernelChoice) -> Self {
        self.choice = choice;
        self
    }

    /// What the gradients of each step are multiplied by first; a clone has one of its own.
    pub fn gradient_scale(&self) -> &GradientScale {
        &self.scale
    }
}

impl Clone for FusedSgd {
    fn clone(&self) -> Self {
        let scale = GradientScale::default();
        scale.set(self.scale.get());
        Self {
            stock: self.stock.clone(),
            momentum: self.momentum.clone(),
            penalty: self.penalty,
            scale,
            choice: self.choice,
        }
    }
}

impl Optimizer for FusedSgd {
    type State<const D: usize> = FusedSgdState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let scale = self.scale.get();
        let Some(momentum) = &self.momentum else {
            let grad = match scale == 1.0 {
                true => grad,
                false => grad.mul_scalar(scale),
            };
            let (tensor, _) = self.stock.step(lr, tensor, grad, None::<SgdState<D>>);
            return (tensor, Some(FusedSgdState { velocity: None }));
        };
        let velocity = state.and_then(|state| state.velocity);
        let step = SgdStep {
            lr,
            momentum: momentum.momentum as f32,
            dampening: momentum.dampening,
            nesterov: momentum.nesterov,
            penalty: self.penalty,
            is_first: velocity.is_none(),
            gradient_scale: scale,
        };
        let velocity = velocity.unwrap_or_else(|| grad.zeros_like());
        let (tensor, velocity) = backend::sgd(tensor, grad, velocity, step, self.choice);
        let velocity = Some(velocity);
        (tensor, Some(FusedSgdState { velocity }))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        let velocity = state.velocity.map(|velocity| velocity.to_device(device));
        FusedSgdState { velocity }
    }
}
