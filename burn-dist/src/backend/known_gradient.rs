//! [`KnownGradient`]: a function whose derivative was computed with it.

use burn::backend::{
    TensorMetadata,
    autodiff::{
        checkpoint::base::Checkpointer,
        grads::Gradients,
        ops::{Backward, Ops},
    },
    tensor::FloatTensor,
};

use super::DistributedBackend;

/// Multiplies each row's derivative with the row's gradient.
#[derive(Debug)]
pub(super) struct KnownGradient;

impl<B: DistributedBackend> Backward<B, 1> for KnownGradient {
    type State = FloatTensor<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let grad = grads.consume::<B>(&ops.node);
        let [parent] = ops.parents;
        if let Some(parent) = parent {
            // Values may be wider than what they are computed from.
            let (slopes, wide) = (ops.state, grad.dtype());
            let narrow = slopes.dtype();
            let gradient = match narrow == wide {
                true => B::float_mul(slopes, grad),
                false => {
                    let product = B::float_mul(B::float_cast(slopes, wide.into()), grad);
                    B::float_cast(product, narrow.into())
                }
            };
            grads.register::<B>(parent.id, gradient);
        }
    }
}
