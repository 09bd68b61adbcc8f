//! The backward passes of [`DistributedBackend`], written by hand.

use std::marker::PhantomData;

use burn::backend::{
    Autodiff, DispatchKindConversion, DispatchTensor, TensorMetadata,
    autodiff::{
        NodeId,
        checkpoint::{
            base::Checkpointer,
            retro_forward::RetroForward,
            state::BackwardStates,
            strategy::{BalancedCheckpointing, CheckpointStrategy, NoCheckpointing},
        },
        grads::Gradients,
        ops::{Backward, Ops, OpsKind},
    },
    tensor::{FloatTensor, IntTensor},
};

use super::column_product::{ColumnGradients, ColumnState};
use super::deferred_product::{DeferredGradients, DeferredState};
use super::gradient_hook::HookedUse;
use super::parameter_source::{LeafId, LeafSlot, ParameterUse};
use super::row_loss::{RowLoss, RowLossState};
use super::seed::Seed;
use super::unshard::{Collection, Fetch, Marking};
use super::{
    BackwardMark, ColumnProduct, Conjugate, DeferredProduct, DeviceArray, DistributedBackend,
    GradientHook, KernelBackend, KernelChoice,
};

/// The gradient takes the conjugate's backward step. The second parent, if any, is a rung: it is
/// untracked and gets nothing.
#[derive(Debug)]
struct Adjoint;

impl<B: DistributedBackend, const N: usize> Backward<B, N> for Adjoint {
    type State = Conjugate;

    fn backward(
        self,
        ops: Ops<Conjugate, N>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let grad = grads.consume::<B>(&ops.node);
        if let Some(Some(parent)) = ops.parents.first() {
            let grad = B::dist_apply(grad, ops.state.reversed());
            grads.register::<B>(parent.id, grad);
        }
    }
}

/// Runs the forward step again in the backward pass.
#[derive(Debug)]
struct Again<B> {
    input: NodeId,
    conjugate: Conjugate,
    backend: PhantomData<B>,
}

impl<B: DistributedBackend> RetroForward for Again<B> {
    fn forward(&self, states: &mut BackwardStates, output: NodeId) {
        let input = states.get_state::<B::FloatTensorPrimitive>(&self.input);
        states.save(output, B::dist_apply(input, self.conjugate.clone()));
    }
}

#[derive(Debug)]
struct Delivery;

impl<B: DistributedBackend> Backward<B, 2> for Delivery
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = HookedUse;

    fn backward(
        self,
        ops: Ops<HookedUse, 2>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let grad = grads.consume::<B>(&ops.node);
        ops.state.ready(DeviceArray::of::<B>(grad));
    }
}

#[derive(Debug)]
struct Rung;

impl<B: DistributedBackend> Backward<B, 1> for Rung {
    type State = ();

    fn backward(self, _ops: Ops<(), 1>, _grads: &mut Gradients, _checkpointer: &mut Checkpointer) {}
}

/// Finishes a prepared operation whose state is `$state` and whose output is `$output`.
macro_rules! finish {
    ($prepared:expr, $state:expr, $output:expr) => {
        match $prepared.stateful() {
            OpsKind::Tracked(prepared) => {
                let state = $state;
                prepared.finish(state, $output)
            }
            OpsKind::UnTracked(prepared) => prepared.finish($output),
        }
    };
}

/// Prepares, runs and records a conjugate over the given parent nodes.
macro_rules! apply {
    ($tensor:ident, $conjugate:ident, $nodes:expr) => {{
        let nodes = $nodes;
        if $conjugate.recompute {
            let again = Again::<B> {
                input: $tensor.id(),
                conjugate: $conjugate.clone(),
                backend: PhantomData,
            };
            let prepared = Adjoint
                .prepare::<BalancedCheckpointing>(nodes)
                .memory_bound()
                .retro_forward(again)
                .parents([&$tensor]);
            finish!(
                prepared,
                $conjugate.clone(),
                B::dist_apply($tensor.into_primitive(), $conjugate)
            )
        } else {
            let prepared = Adjoint.prepare::<NoCheckpointing>(nodes).compute_bound();
            finish!(
                prepared,
                $conjugate.clone(),
                B::dist_apply($tensor.into_primitive(), $conjugate)
            )
        }
    }};
}

impl<B: DistributedBackend + KernelBackend, C: CheckpointStrategy> DistributedBackend
    for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn dist_apply(tensor: FloatTensor<Self>, conjugate: Conjugate) -> FloatTensor<Self> {
        apply!(tensor, conjugate, [tensor.node()])
    }

    fn dist_apply_at(
        tensor: FloatTensor<Self>,
        rung: FloatTensor<Self>,
        conjugate: Conjugate,
    ) -> FloatTensor<Self> {
        apply!(tensor, conjugate, [tensor.node(), rung.node()])
    }

    fn dist_hook(
        tensor: FloatTensor<Self>,
        rung: FloatTensor<Self>,
        hook: GradientHook,
    ) -> FloatTensor<Self> {
        let prepared = Delivery
            .prepare::<C>([tensor.node(), rung.node()])
            .compute_bound();
        let output = tensor.into_primitive();
        finish!(prepared, hook.used(), output)
    }

    fn dist_unshard(
        shard: FloatTensor<Self>,
        mark: FloatTensor<Self>,
        parameter: ParameterUse,
    ) -> FloatTensor<Self> {
        let nodes = [shard.node(), mark.node()];
        if parameter.kept || parameter.in_place {
            let prepared = Collection.prepare::<NoCheckpointing>(nodes).compute_bound();
            let output = B::dist_unshard(
                shard.into_primitive(),
                mark.into_primitive(),
                parameter.clone(),
            );
            return finish!(prepared, parameter, output);
        }
        let fetch = Fetch::<B> {
            inputs: [shard.id(), mark.id()],
            parameter: parameter.clone(),
            backend: PhantomData,
        };
        let prepared = Collection
            .prepare::<BalancedCheckpointing>(nodes)
            .memory_bound()
            .retro_forward(fetch)
            .parents([&shard, &mark]);
        let output = B::dist_unshard(
            shard.into_primitive(),
            mark.into_primitive(),
            parameter.clone(),
        );
        finish!(prepared, parameter, output)
    }

    fn dist_column_product(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        column: ColumnProduct,
    ) -> FloatTensor<Self> {
        let prepared = ColumnGradients
            .prepare::<C>([input.node(), weight.node()])
            .compute_bound();
        let (input_tracked, weight_tracked) = (input.is_tracked(), weight.is_tracked());
        match prepared.stateful() {
            OpsKind::Tracked(mut prepared) => {
                let keeps_whole = column.sequence_dim.is_some() && !column.regather;
                let keeps_input = weight_tracked && !keeps_whole;
                let kept_input = keeps_input.then(|| prepared.checkpoint(&input));
                let kept_weight = input_tracked.then(|| prepared.checkpoint(&weight));
                let whole = column.whole::<B>(input.into_primitive());
                let state = ColumnState {
                    whole: (weight_tracked && keeps_whole).then(|| whole.clone()),
                    input: kept_input,
                    weight: kept_weight,
                    column,
                };
                let output = ColumnProduct::product::<B>(whole, weight.into_primitive());
                prepared.finish(state, output)
            }
            OpsKind::UnTracked(prepared) => {
                let (input, weight) = (input.into_primitive(), weight.into_primitive());
                prepared.finish(B::dist_column_product(input, weight, column))
            }
        }
    }

    fn dist_row_loss(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
        losses: FloatTensor<Self>,
        slopes: FloatTensor<Self>,
        tokens: usize,
        choice: KernelChoice,
    ) -> FloatTensor<Self> {
        let prepared = RowLoss.prepare::<C>([logits.node()]).compute_bound();
        let state = RowLossState {
            logits: logits.into_primitive(),
            targets,
            slopes: slopes.into_primitive(),
            tokens,
            choice,
        };
        finish!(prepared, state, losses.into_primitive())
    }

    fn dist_deferred_product(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        deferred: DeferredProduct,
    ) -> FloatTensor<Self> {
        let prepared = DeferredGradients
            .prepare::<C>([input.node(), weight.node()])
            .compute_bound();
        match prepared.stateful() {
            OpsKind::Tracked(mut prepared) => {
                let state = DeferredState {
                    deferred,
                    input: prepared.checkpoint(&input),
                    weight: prepared.checkpoint(&weight),
                };
                let (input, weight) = (input.into_primitive(), weight.into_primitive());
                prepared.finish(state, DeferredProduct::forward::<B>(input, weight))
            }
            OpsKind::UnTracked(prepared) => {
                let (input, weight) = (input.into_primitive(), weight.into_primitive());
                prepared.finish(DeferredProduct::forward::<B>(input, weight))
            }
        }
    }

    fn dist_seed(output: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        let prepared = Seed.prepare::<C>([output.node()]).compute_bound();
        let gradient = gradient.into_primitive();
        let zero = B::dist_seed(output.into_primitive(), gradient.clone());
        finish!(prepared, gradient, zero)
    }

    fn dist_leaf(tensor: FloatTensor<Self>, slot: LeafSlot) -> FloatTensor<Self> {
        // A slot serves one tensor.
        let _ = slot.0.set(LeafId(tensor.id()));
        tensor
    }

    fn dist_mark(
        below: FloatTensor<Self>,
        rung: FloatTensor<Self>,
        mark: BackwardMark,
    ) -> FloatTensor<Self> {
        let nodes = [below.node(), rung.node()];
        let prepared = Marking.prepare::<C>(nodes).compute_bound();
        let output = below.into_primitive();
        let device = output.device();
        finish!(prepared, (mark, device), output)
    }

    fn dist_rung(below: FloatTensor<Self>) -> FloatTensor<Self> {
        let prepared = Rung.prepare::<C>([below.node()]).compute_bound();
        finish!(prepared, (), below.into_primitive())
    }
}
