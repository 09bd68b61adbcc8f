//! [`DeferredProduct`]: a matrix product whose weight's gradient is computed when somebody asks for it.

use std::fmt;
use std::sync::{Arc, Mutex};

use burn::backend::{
    Backend, TensorMetadata,
    autodiff::{
        NodeId,
        checkpoint::base::Checkpointer,
        grads::Gradients,
        ops::{Backward, Ops},
    },
    tensor::FloatTensor,
    try_read_sync,
};
use burn::tensor::{Shape, TensorData};
use burn_std::{MatmulTransformAction, MatmulTransformAnalysis, MatmulTransformPolicy};

use super::started::rows;
use super::{ColumnProduct, DistributedBackend};

/// Computes a weight's gradient, in the order and shapes in which Burn's `linear` does.
type Product = Box<dyn FnOnce() -> TensorData + Send>;

/// Products that backward passes left to be computed, each with the number of the layer that it belongs
/// to. Clones share them.
#[derive(Clone, Default)]
pub struct DeferredProducts(Arc<Mutex<Vec<(u64, Product)>>>);

impl fmt::Debug for DeferredProducts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeferredProducts({})", self.lock().len())
    }
}

impl DeferredProducts {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(u64, Product)>> {
        self.0.lock().expect("invariant: no panic under this lock")
    }

    /// Takes all that was left since the last time, in the order of the backward pass.
    pub fn take(&self) -> Vec<(u64, Product)> {
        std::mem::take(&mut self.lock())
    }
}

/// `Y = X W`: backward gives the gradient of `X`, and leaves that of `W` to [`DeferredProducts`].
#[derive(Debug, Clone)]
pub struct DeferredProduct {
    /// Where the products go.
    pub products: DeferredProducts,
    /// The layer's number there.
    pub layer: u64,
}

/// Whether Burn's `linear` joins the leading dims of an input of this shape before it multiplies.
pub fn joins_rows(input: &Shape, weight: &Shape) -> bool {
    let analysis = MatmulTransformAnalysis::from_shapes(input, weight);
    matches!(
        MatmulTransformPolicy::default().action(&analysis),
        MatmulTransformAction::MergeBatches { .. }
    )
}

impl DeferredProduct {
    /// `[.., h], [h, d] -> [.., d]`.
    pub(super) fn forward<B: Backend>(
        input: FloatTensor<B>,
        weight: FloatTensor<B>,
    ) -> FloatTensor<B> {
        B::linear(input, weight, None)
    }
}

/// What the backward pass needs.
#[derive(Debug, Clone)]
pub(super) struct DeferredState {
    pub(super) deferred: DeferredProduct,
    pub(super) input: NodeId,
    pub(super) weight: NodeId,
}

#[derive(Debug)]
pub(super) struct DeferredGradients;

impl<B: DistributedBackend> Backward<B, 2> for DeferredGradients {
    type State = DeferredState;

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let grad = grads.consume::<B>(&ops.node);
        let DeferredState {
            deferred,
            input,
            weight,
        } = ops.state;
        let [input_node, weight_node] = ops.parents;
        let input = checkpointer.retrieve_node_output::<B::FloatTensorPrimitive>(input);
        let weight = checkpointer.retrieve_node_output::<B::FloatTensorPrimitive>(weight);
        let merged = joins_rows(&input.shape(), &weight.shape());
        if let Some(node) = input_node {
            grads.register::<B>(node.id, input_gradient::<B>(weight, grad.clone(), merged));
        }
        if weight_node.is_some() {
            let product = move || {
                let gradient = weight_gradient::<B>(input, grad, merged);
                try_read_sync(B::float_into_data(gradient))
                    .expect("invariant: native targets can block on a read")
                    .expect("invariant: what was computed can be read")
            };
            let mut products = deferred.products.lock();
            products.push((deferred.layer, Box::new(product)));
        }
    }
}

fn input_gradient<B: Backend>(
    weight: FloatTensor<B>,
    grad: FloatTensor<B>,
    merged: bool,
) -> FloatTensor<B> {
    let shape = grad.shape().to_vec();
    if !merged {
        // Reshaped first: a matrix that lies otherwise is multiplied by other kernels.
        let mut wide = vec![1; shape.len() - 2];
        wide.extend(weight.shape().to_vec());
        let (from, to) = (shape.len() - 2, shape.len() - 1);
        let weight = B::float_reshape(weight, Shape::from(wide));
        return B::float_matmul(grad, B::float_swap_dims(weight, from, to));
    }
    ColumnProduct::product::<B>(grad, B::float_swap_dims(weight, 0, 1))
}

fn weight_gradient<B: Backend>(
    input: FloatTensor<B>,
    grad: FloatTensor<B>,
    merged: bool,
) -> FloatTensor<B> {
    if merged {
        let columns = B::float_swap_dims(rows::<B>(input), 0, 1);
        return B::float_matmul(columns, rows::<B>(grad));
    }
    // A product per sequence, then their sum, as autodiff does for a weight that was broadcast.
    let dims = input.shape().num_dims();
    let columns = B::float_swap_dims(input, dims - 2, dims - 1);
    let mut product = B::float_matmul(columns, grad);
    for dim in 0..dims - 2 {
        product = B::float_sum_dim(product, dim);
    }
    let shape = product.shape().to_vec();
    B::float_reshape(product, Shape::from(shape[dims - 2..].to_vec()))
}
