//! [`RowLoss`]: losses of rows of logits, whose gradient is written where the logits were.

use burn::backend::{
    TensorMetadata,
    autodiff::{
        checkpoint::base::Checkpointer,
        grads::Gradients,
        ops::{Backward, Ops},
    },
    tensor::{FloatTensor, IntTensor},
};

use super::kernel_twins as twins;
use super::{DistributedBackend, KernelBackend, KernelChoice};
use crate::kernels::ROW_SLOPES;

/// What the backward pass needs.
#[derive(Debug, Clone)]
pub(super) struct RowLossState<B: DistributedBackend> {
    /// `[rows, columns]`
    pub(super) logits: FloatTensor<B>,
    /// `[rows, 1]`
    pub(super) targets: IntTensor<B>,
    /// `[rows, ROW_SLOPES]`, of a gradient of 1.
    pub(super) slopes: FloatTensor<B>,
    pub(super) tokens: usize,
    pub(super) choice: KernelChoice,
}

/// Computes the logits' gradient from each row's.
#[derive(Debug)]
pub(super) struct RowLoss;

impl<B: DistributedBackend + KernelBackend> Backward<B, 1> for RowLoss {
    type State = RowLossState<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let grad = grads.consume::<B>(&ops.node);
        let [parent] = ops.parents;
        let Some(parent) = parent else { return };
        let RowLossState {
            logits,
            targets,
            slopes,
            tokens,
            choice,
        } = ops.state;
        // All but the largest logit grow with the gradient.
        let dtype = slopes.dtype();
        let grad = B::float_cast(grad, dtype.into());
        let ones = B::float_ones(grad.shape(), &grad.device(), dtype.into());
        let mut factors = vec![ones];
        factors.resize(ROW_SLOPES, grad);
        let slopes = B::float_mul(slopes, B::float_cat(factors, 1));
        let gradient = match choice {
            KernelChoice::Fused => B::kernel_row_slopes(logits, targets, slopes, tokens),
            KernelChoice::Twin => twins::row_slopes::<B>(logits, targets, slopes, tokens),
        };
        grads.register::<B>(parent.id, gradient);
    }
}
