//! The distributed backend decorator: operations that Burn's backends gain.

use burn::backend::{
    Backend as BurnBackend, TensorMetadata, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
use burn::tensor::Shape;

use super::parameter_source::{LeafSlot, ParameterUse, Pass};
use super::unit_memory::OwnSlot;
use super::{
    BackwardMark, CollectiveCall, ColumnProduct, Conjugate, DeferredProduct, GradientHook,
    KernelChoice, StartRequest, staged, unshard,
};

/// Collective operations on backend primitives, over Flex, the CubeCL backends, Autodiff and Fusion.
///
/// Every default body is made of operations of [`Backend`](BurnBackend) and of calls that each backend may carry out
/// in its own way, see [`CollectiveCall`], so that it is right on each of them; `Autodiff` adds the backward passes.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(any(feature = "cpu", feature = "cuda")),
    Autodiff,
    Fusion: cfg(feature = "fusion")
)]
pub trait DistributedBackend: BurnBackend + CollectiveCall {
    /// Runs the forward step; on `Autodiff` the gradient takes the backward step.
    #[fusion(default)]
    fn dist_apply(tensor: FloatTensor<Self>, conjugate: Conjugate) -> FloatTensor<Self> {
        staged::run::<Self>(tensor, &conjugate)
    }

    /// As `dist_apply`, placed in the backward order right after the consumers that follow `rung`.
    #[fusion(default)]
    fn dist_apply_at(
        tensor: FloatTensor<Self>,
        rung: FloatTensor<Self>,
        conjugate: Conjugate,
    ) -> FloatTensor<Self> {
        drop(rung);
        staged::run::<Self>(tensor, &conjugate)
    }

    /// The tensor as it is; on `Autodiff` its gradient goes to the hook and not to the leaf.
    #[fusion(default)]
    fn dist_hook(
        tensor: FloatTensor<Self>,
        rung: FloatTensor<Self>,
        hook: GradientHook,
    ) -> FloatTensor<Self> {
        drop((rung, hook));
        tensor
    }

    /// A parameter from its source; on `Autodiff` its gradient goes there. `shard` is the leaf that it is
    /// kept in, `mark` a mark of its unit.
    #[fusion(default)]
    fn dist_unshard(
        shard: FloatTensor<Self>,
        mark: FloatTensor<Self>,
        parameter: ParameterUse,
    ) -> FloatTensor<Self> {
        drop(mark);
        unshard::run::<Self>(shard, &parameter, Pass::Forward)
    }

    /// The tensor as it is; `Autodiff` writes down which leaf it is.
    #[fusion(default)]
    fn dist_leaf(tensor: FloatTensor<Self>, slot: LeafSlot) -> FloatTensor<Self> {
        drop(slot);
        tensor
    }

    /// The product with this rank's columns of a matrix.
    #[fusion(default)]
    fn dist_column_product(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        column: ColumnProduct,
    ) -> FloatTensor<Self> {
        let whole = column.whole::<Self>(input);
        ColumnProduct::product::<Self>(whole, weight)
    }

    /// `losses [rows, 1]`; on `Autodiff` as a function of `logits [rows, columns]`, whose gradient comes from
    /// `slopes [rows, ROW_SLOPES]`: see [`row_slopes`](crate::kernels::row_slopes).
    #[fusion(default)]
    fn dist_row_loss(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
        losses: FloatTensor<Self>,
        slopes: FloatTensor<Self>,
        tokens: usize,
        choice: KernelChoice,
    ) -> FloatTensor<Self> {
        let _ = (logits, targets, slopes, tokens, choice);
        losses
    }

    /// The product of an input and a weight; on `Autodiff` the weight's gradient is left for later.
    #[fusion(default)]
    fn dist_deferred_product(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        deferred: DeferredProduct,
    ) -> FloatTensor<Self> {
        drop(deferred);
        DeferredProduct::forward::<Self>(input, weight)
    }

    /// Zero, `[1]`; on `Autodiff` a backward pass from it gives `output` the gradient `gradient`.
    #[fusion(default)]
    fn dist_seed(output: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        drop(gradient);
        let dtype = output.dtype().into();
        Self::float_zeros(Shape::new([1]), &output.device(), dtype)
    }

    /// A mark right above `rung` that runs before `below` in a backward pass.
    #[fusion(default)]
    fn dist_mark(
        below: FloatTensor<Self>,
        rung: FloatTensor<Self>,
        mark: BackwardMark,
    ) -> FloatTensor<Self> {
        drop((rung, mark));
        below
    }

    /// Starts a collective; the work goes to where the request says. For tensors without a graph.
    #[fusion(default)]
    fn dist_start(tensor: FloatTensor<Self>, request: StartRequest) -> FloatTensor<Self> {
        request.start::<Self>(tensor)
    }

    /// The tensor as it is; the backend's own goes to the slot. For tensors without a graph.
    #[fusion(default)]
    fn dist_own(tensor: FloatTensor<Self>, slot: OwnSlot) -> FloatTensor<Self> {
        slot.put::<Self>(tensor.clone());
        tensor
    }

    /// One rung of a ladder: a node that is one step deeper than `below`.
    #[fusion(default)]
    fn dist_rung(below: FloatTensor<Self>) -> FloatTensor<Self> {
        below
    }
}

#[cfg(feature = "flex")]
impl DistributedBackend for burn::backend::Flex {}
