//! [`Seed`]: a backward pass that starts with a given gradient.

use burn::backend::{
    autodiff::{
        checkpoint::base::Checkpointer,
        grads::Gradients,
        ops::{Backward, Ops},
    },
    tensor::FloatTensor,
};

use super::DistributedBackend;

/// Gives its parent the gradient that it was made with, whatever its own is.
#[derive(Debug)]
pub(super) struct Seed;

impl<B: DistributedBackend> Backward<B, 1> for Seed {
    type State = FloatTensor<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        drop(grads.consume::<B>(&ops.node));
        let [parent] = ops.parents;
        if let Some(parent) = parent {
            grads.register::<B>(parent.id, ops.state);
        }
    }
}
