//! From a model's parameters to flat pieces, and from flat units back to the model.

use std::collections::HashMap;

use burn::module::{ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

use crate::ShardPiece;

/// Copies a rank's pieces out of a model.
pub(crate) struct ReadPieces<'a> {
    /// By the parameter's identifier: number in `values`, and what to copy.
    pub(crate) wanted: HashMap<ParamId, (usize, &'a ShardPiece)>,
    pub(crate) values: Vec<Option<Tensor<1>>>,
}

impl ModuleVisitor for ReadPieces<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // A shared parameter stands in several places and is read once.
        let Some((number, piece)) = self.wanted.remove(&param.id) else {
            return;
        };
        let base = param.base().inner();
        let flat: Tensor<1> = base.reshape([-1]);
        self.values[number] = Some(flat.slice([piece.elements.clone()]));
    }
}

/// Puts new values, flat, into a model; each parameter keeps what autodiff knows of it.
pub(crate) struct WriteValues {
    pub(crate) values: HashMap<ParamId, Tensor<1>>,
}

impl ModuleMapper for WriteValues {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(value) = self.values.get(&param.id).cloned() else {
            return param;
        };
        param.map(|old| {
            let value: Tensor<D> = value.reshape(old.dims()).cast(old.dtype());
            if !old.is_autodiff() {
                return value;
            }
            let mut new = Tensor::from_inner(value);
            if let Some(strategy) = old.gradient_checkpointing_strategy() {
                new = new.with_gradient_checkpointing_strategy(strategy);
            }
            new.set_require_grad(old.is_require_grad())
        })
    }
}
