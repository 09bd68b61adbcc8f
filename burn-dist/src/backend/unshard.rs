//! A parameter's values from its source, and their way through the autodiff graph.

use std::marker::PhantomData;

use burn::backend::Scalar;
use burn::backend::{
    Backend as BurnBackend, DispatchKindConversion, DispatchTensor, Slice, TensorMetadata,
    autodiff::{
        NodeId,
        checkpoint::{base::Checkpointer, retro_forward::RetroForward, state::BackwardStates},
        grads::Gradients,
        ops::{Backward, Ops},
    },
    tensor::{Device, FloatTensor},
};
use burn::tensor::Shape;

use super::parameter_source::{ParameterUse, Pass};
use super::{BackwardMark, DeviceArray, staged};

/// Parameters up to this size are copied out of their unit: layers keep views of small ones (a
/// transposed bias, a reshaped scale) in the graph, which would keep the whole unit.
const COPIED_BYTES: usize = 64 << 10;

/// The values of a parameter.
pub(super) fn run<B: BurnBackend>(
    shard: FloatTensor<B>,
    parameter: &ParameterUse,
    pass: Pass,
) -> FloatTensor<B> {
    let device = shard.device();
    let shape = Shape::from(parameter.shape.clone());
    if parameter.in_place {
        let whole = B::float_reshape(shard, shape);
        return match whole.dtype() == parameter.dtype {
            true => whole,
            false => B::float_cast(whole, parameter.dtype.into()),
        };
    }
    match parameter.source.whole(parameter.parameter, pass) {
        Ok((unit, place)) => {
            let bytes = place.len() * parameter.dtype.size();
            let unit = unit.tensor::<B>(&device);
            let flat = B::float_slice(unit, &[Slice::from(place)]);
            let whole = B::float_reshape(flat, shape);
            match bytes <= COPIED_BYTES {
                true => B::float_mul_scalar(whole, Scalar::from(1.0)),
                false => whole,
            }
        }
        Err(_) => staged::nan::<B>(parameter.shape.clone(), parameter.dtype, &device),
    }
}

/// Asks the source again in the backward pass.
#[derive(Debug)]
pub(super) struct Fetch<B> {
    pub(super) inputs: [NodeId; 2],
    pub(super) parameter: ParameterUse,
    pub(super) backend: PhantomData<B>,
}

impl<B: BurnBackend> RetroForward for Fetch<B> {
    fn forward(&self, states: &mut BackwardStates, output: NodeId) {
        let [shard, _] = self
            .inputs
            .map(|input| states.get_state::<B::FloatTensorPrimitive>(&input));
        states.save(output, run::<B>(shard, &self.parameter, Pass::Backward));
    }
}

/// The gradient goes to the source. The second parent is a mark, which gets nothing.
#[derive(Debug)]
pub(super) struct Collection;

impl<B: BurnBackend> Backward<B, 2> for Collection
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = ParameterUse;

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let grad = grads.consume::<B>(&ops.node);
        let ParameterUse {
            source, parameter, ..
        } = ops.state;
        source.gradient(parameter, DeviceArray::of::<B>(grad));
    }
}

/// Tells the source how far the backward pass has come.
#[derive(Debug)]
pub(super) struct Marking;

impl<B: BurnBackend> Backward<B, 2> for Marking
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = (BackwardMark, Device<B>);

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let (mark, device) = ops.state;
        match mark {
            BackwardMark::Unit(source, unit) => source.end_unit(unit),
            BackwardMark::Pass(source) => {
                for (leaf, gradient) in source.end_pass() {
                    grads.register::<B>(leaf.0, gradient.into_own::<B>(&device));
                }
            }
        }
    }
}
