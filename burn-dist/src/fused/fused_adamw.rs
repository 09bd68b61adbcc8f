//! [`FusedAdamW`]: Burn's AdamW in one pass.

use burn::optim::{AdamW, AdamWConfig, AdamWState, AdaptiveMomentumState, LearningRate, Optimizer};
use burn::tensor::{Device, Tensor};
use serde::Deserialize;

use crate::backend::{self, KernelChoice};
use crate::fused::GradientScale;
use crate::kernels::AdamWStep;

/// Burn's `AdamW` as one pass over parameter, gradient and two moments instead of a chain of fifteen tensor
/// operations, in place where nobody else holds them. Its state is that of `AdamW`, in checkpoints too.
///
/// On Flex in 32 and 64 bits it has the bits of `AdamW`; 16-bit values are computed in 32 bits and rounded
/// once; other backends differ by what their compilers make of the formula. AMSGrad and cautious decay go
/// `AdamW`'s own way.
///
/// ```
/// # use burn::optim::{AdamWConfig, ModuleOptimizer};
/// # use burn_dist::fused::FusedAdamW;
/// let optimizer = ModuleOptimizer::from(FusedAdamW::new(&AdamWConfig::new()));
/// ```
pub struct FusedAdamW {
    stock: AdamW,
    numbers: Numbers,
    scale: GradientScale,
    choice: KernelChoice,
}

/// What the configuration says, which keeps it to itself.
#[derive(Debug, Clone, Deserialize)]
struct Numbers {
    beta_1: f32,
    beta_2: f32,
    epsilon: f32,
    weight_decay: f32,
    cautious_weight_decay: bool,
    amsgrad: bool,
}

impl FusedAdamW {
    /// With the numbers of a configuration; as `config.build()`, without its gradient clipping.
    pub fn new(config: &AdamWConfig) -> Self {
        let numbers = serde_json::to_value(config);
        let numbers = numbers.and_then(serde_json::from_value);
        Self {
            stock: config.build(),
            numbers: numbers.expect("invariant: the configuration holds these numbers"),
            scale: GradientScale::default(),
            choice: KernelChoice::Fused,
        }
    }

    /// How steps are carried out: by one kernel, or by Burn's own chain of operations.
    pub fn kernels(mut self, choice: KernelChoice) -> Self {
        self.choice = choice;
        self
    }

    /// What the gradients of each step are multiplied by first; a clone has one of its own. `ShardedOptimizer`
    /// of `burn-zero` sets it to the coefficient that it clips by.
    pub fn gradient_scale(&self) -> &GradientScale {
        &self.scale
    }
}

impl Clone for FusedAdamW {
    fn clone(&self) -> Self {
        let scale = GradientScale::default();
        scale.set(self.scale.get());
        Self {
            stock: self.stock.clone(),
            numbers: self.numbers.clone(),
            scale,
            choice: self.choice,
        }
    }
}

impl Optimizer for FusedAdamW {
    type State<const D: usize> = AdamWState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let numbers = &self.numbers;
        let scale = self.scale.get();
        let is_stock = self.choice == KernelChoice::Twin;
        if is_stock || numbers.amsgrad || numbers.cautious_weight_decay {
            let grad = match scale == 1.0 {
                true => grad,
                false => grad.mul_scalar(scale),
            };
            return self.stock.step(lr, tensor, grad, state);
        }
        let state = match state {
            Some(state) => state.momentum,
            None => AdaptiveMomentumState::new(
                0,
                // A sum with -0.0 is the other number, also where that is -0.0.
                grad.zeros_like().neg(),
                grad.zeros_like(),
            ),
        };
        let step = AdamWStep {
            lr,
            beta_1: numbers.beta_1,
            beta_2: numbers.beta_2,
            epsilon: numbers.epsilon,
            weight_decay: numbers.weight_decay,
            time: state.time + 1,
            gradient_scale: scale,
        };
        let moments = [state.moment_1, state.moment_2];
        let (tensor, [moment_1, moment_2]) =
            backend::adamw(tensor, grad, moments, step, self.choice);
        let state = AdaptiveMomentumState::new(step.time, moment_1, moment_2);
        (tensor, Some(AdamWState::new(state)))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        AdamW::to_device(state, device)
    }
}
