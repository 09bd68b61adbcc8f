//! [`ColumnProduct`]: a matrix product whose matrix is split by columns over a group.

use std::panic::Location;

use burn::backend::{
    Backend, TensorMetadata,
    autodiff::{
        NodeId,
        checkpoint::base::Checkpointer,
        grads::Gradients,
        ops::{Backward, Ops},
    },
    tensor::FloatTensor,
};
use burn::tensor::Shape;

use super::started::{Started, rows};
use super::{DistributedBackend, Step};
use crate::communicator::ReduceOp;
use crate::group::ProcessGroup;

/// `Y_i = X W_i` on rank `i` of `n`, forward and backward with their collectives.
///
/// `X` is `[.., s, h]` and whole on every rank, or its sequence dim is split, `[.., s/n, h]`; `W_i` is
/// `[h, d/n]`, `Y_i` is `[.., s, d/n]`.
///
/// | input | forward | backward |
/// |---|---|---|
/// | whole | nothing | all_reduce of the input's gradient |
/// | split | all_gather | reduce_scatter of the input's gradient, and with `regather` an all_gather |
///
/// What travels backward does so while the gradient of `W_i` is computed. (Megatron-LM, arXiv 1909.08053,
/// section 3, the function f; arXiv 2205.05198, section 4.2.2.)
#[derive(Debug, Clone)]
pub struct ColumnProduct {
    /// The ranks.
    pub group: ProcessGroup,
    /// The dim of `X` that is split, if one is.
    pub sequence_dim: Option<usize>,
    /// Of a split input only this rank's part is kept for the backward pass, which gathers it again.
    pub regather: bool,
    /// Collectives of the backward pass run beside its products.
    pub overlap: bool,
    /// Where in the program the product is made, for the flight recorder.
    pub site: &'static Location<'static>,
}

impl ColumnProduct {
    fn start<B: DistributedBackend>(&self, tensor: FloatTensor<B>, step: &Step) -> Started<B> {
        Started::new(tensor, step, &self.group, self.site, self.overlap)
    }

    /// All of the input.
    pub(super) fn whole<B: DistributedBackend>(&self, input: FloatTensor<B>) -> FloatTensor<B> {
        match self.sequence_dim {
            None => input,
            Some(dim) => {
                let step = Step::AllGather { dim };
                Started::<B>::new(input, &step, &self.group, self.site, false).wait()
            }
        }
    }

    /// The product with what [`whole`](Self::whole) gave.
    pub(super) fn product<B: Backend>(
        whole: FloatTensor<B>,
        weight: FloatTensor<B>,
    ) -> FloatTensor<B> {
        let mut shape = whole.shape().to_vec();
        let width = weight.shape()[1];
        let product = B::float_matmul(rows::<B>(whole), weight);
        if let Some(last) = shape.last_mut() {
            *last = width;
        }
        B::float_reshape(product, Shape::from(shape))
    }
}

/// What the backward pass needs.
#[derive(Debug, Clone)]
pub(super) struct ColumnState<F> {
    pub(super) column: ColumnProduct,
    /// The whole input, if it was gathered and kept.
    pub(super) whole: Option<F>,
    /// The input as it came, if the weight takes a gradient.
    pub(super) input: Option<NodeId>,
    /// The weight, if the input takes a gradient.
    pub(super) weight: Option<NodeId>,
}

#[derive(Debug)]
pub(super) struct ColumnGradients;

impl<B: DistributedBackend> Backward<B, 2> for ColumnGradients {
    type State = ColumnState<B::FloatTensorPrimitive>;

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let ColumnState {
            column,
            whole,
            input,
            weight,
        } = ops.state;
        let [input_node, weight_node] = ops.parents;
        let grad = grads.consume::<B>(&ops.node);
        let mut retrieve = |id| checkpointer.retrieve_node_output::<B::FloatTensorPrimitive>(id);
        let input = whole.or_else(|| input.map(&mut retrieve));
        let gathers = column.regather && column.sequence_dim.is_some();
        let input = input.map(|input| match column.sequence_dim {
            Some(dim) if gathers => {
                Input::Coming(column.start::<B>(input, &Step::AllGather { dim }))
            }
            _ => Input::Here(input),
        });
        let reducing = input_node.zip(weight).map(|(node, weight)| {
            let weight = B::float_swap_dims(retrieve(weight), 0, 1);
            let partial = ColumnProduct::product::<B>(grad.clone(), weight);
            let sum = ReduceOp::Sum;
            let step = match column.sequence_dim {
                Some(dim) => Step::ReduceScatter { op: sum, dim },
                None => Step::AllReduce(sum),
            };
            (node.id, column.start::<B>(partial, &step))
        });
        if let Some((node, input)) = weight_node.zip(input) {
            let columns = B::float_swap_dims(rows::<B>(input.wait()), 0, 1);
            let gradient = B::float_matmul(columns, rows::<B>(grad));
            grads.register::<B>(node.id, gradient);
        }
        if let Some((id, reducing)) = reducing {
            grads.register::<B>(id, reducing.wait());
        }
    }
}

/// The whole input, or the call that brings it.
enum Input<B: DistributedBackend> {
    Here(FloatTensor<B>),
    Coming(Started<B>),
}

impl<B: DistributedBackend> Input<B> {
    fn wait(self) -> FloatTensor<B> {
        match self {
            Self::Here(input) => input,
            Self::Coming(started) => started.wait(),
        }
    }
}
