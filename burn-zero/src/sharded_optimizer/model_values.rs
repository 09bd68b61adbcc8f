//! From a model's parameters to flat pieces, and from flat units back to the model.

use std::collections::{HashMap, HashSet};

use burn::module::{ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, GradientCheckpointingStrategy, Tensor};

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

/// What stays of a parameter while its values are away.
struct Frame {
    shape: Vec<usize>,
    dtype: DType,
    is_tracked: bool,
    requires_grad: bool,
    checkpointing: Option<GradientCheckpointingStrategy>,
}

/// Takes the values of some parameters out of a model, so that their memory serves the new ones.
pub(crate) struct TakeValues {
    pub(crate) wanted: HashSet<ParamId>,
    frames: HashMap<ParamId, Frame>,
}

impl TakeValues {
    pub(crate) fn new(wanted: HashSet<ParamId>) -> Self {
        Self {
            wanted,
            frames: HashMap::new(),
        }
    }

    /// The way back.
    pub(crate) fn put(self, values: HashMap<ParamId, Tensor<1>>) -> WriteValues {
        WriteValues {
            values,
            frames: self.frames,
        }
    }
}

impl ModuleMapper for TakeValues {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let id = param.id;
        if !self.wanted.contains(&id) {
            return param;
        }
        param.map(|old| {
            // A shared parameter comes again.
            self.frames.entry(id).or_insert_with(|| Frame {
                shape: old.dims().to_vec(),
                dtype: old.dtype(),
                is_tracked: old.is_autodiff(),
                requires_grad: old.is_require_grad(),
                checkpointing: old.gradient_checkpointing_strategy(),
            });
            Tensor::empty([0; D], &old.device())
        })
    }
}

/// Puts new values, flat, into a model; each parameter keeps what autodiff knew of it.
pub(crate) struct WriteValues {
    values: HashMap<ParamId, Tensor<1>>,
    frames: HashMap<ParamId, Frame>,
}

impl ModuleMapper for WriteValues {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = self.values.get(&param.id).cloned();
        let Some((value, frame)) = value.zip(self.frames.get(&param.id)) else {
            return param;
        };
        param.map(|_| {
            let shape: [usize; D] = frame
                .shape
                .as_slice()
                .try_into()
                .expect("invariant: a parameter keeps its rank");
            let value: Tensor<D> = value.reshape(shape).cast(frame.dtype);
            if !frame.is_tracked {
                return value;
            }
            let mut new = Tensor::from_inner(value);
            if let Some(strategy) = frame.checkpointing {
                new = new.with_gradient_checkpointing_strategy(strategy);
            }
            new.set_require_grad(frame.requires_grad)
        })
    }
}

/// Casts trained parameters; each keeps what autodiff knew of it.
pub(crate) struct CastTrained(pub(crate) DType);

impl ModuleMapper for CastTrained {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !param.base().is_require_grad() {
            return param;
        }
        param.map(|old| {
            let checkpointing = old.gradient_checkpointing_strategy();
            let mut new = Tensor::from_inner(old.inner().cast(self.0));
            if let Some(strategy) = checkpointing {
                new = new.with_gradient_checkpointing_strategy(strategy);
            }
            new.require_grad()
        })
    }
}
