//! Values that ranks keep in pieces, whole again.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, Device, Tensor};
use burn_dist::backend::FlatMemory;
use burn_dist::communicator::Operation;
use burn_dist::{ProcessGroup, Result};

use crate::{ShardLayout, ShardPiece};

/// Where the units of a layout lie, and in which type they travel.
pub(crate) struct WholeUnits<'a> {
    pub(crate) group: &'a ProcessGroup,
    pub(crate) layout: &'a ShardLayout,
    pub(crate) device: &'a dyn Fn(usize) -> Device,
    pub(crate) dtype: &'a dyn Fn(usize) -> DType,
}

impl WholeUnits<'_> {
    /// All values, flat, by the unit and the parameter's number in it, from this rank's pieces; nothing where they
    /// are not wanted. Collective: an all_gather for each unit, one after the other.
    pub(crate) fn gather(
        &self,
        wanted: bool,
        value: impl Fn(&ShardPiece) -> Tensor<1>,
    ) -> Result<Vec<((usize, usize), Tensor<1>)>> {
        let mut values = Vec::new();
        for unit in 0..self.layout.num_units() {
            let device = (self.device)(unit);
            let pieces = self.layout.pieces(unit, self.group.index()).into_iter();
            let own = FlatMemory::of(self.group, &device).join(
                (self.dtype)(unit),
                self.layout.part_len(unit),
                pieces.map(|piece| (piece.place.clone(), value(&piece))),
            )?;
            let whole = own.start(Operation::AllGather, self.group, None).wait()?;
            if !wanted {
                continue;
            }
            let whole = whole.into_tensor(&device);
            for (parameter, place) in self.layout.places(unit) {
                values.push(((unit, parameter), whole.clone().slice([place])));
            }
        }
        Ok(values)
    }
}

/// The values of some of a model's parameters, flat and untracked; of a wrapped one, this rank's pieces.
pub(crate) struct ReadValues {
    wanted: HashSet<ParamId>,
    values: HashMap<ParamId, Tensor<1>>,
}

impl ReadValues {
    /// What stands in for a split parameter, under another identifier, is as large as all of it and is not read.
    pub(crate) fn of<M: Module>(
        model: &M,
        wanted: impl IntoIterator<Item = ParamId>,
    ) -> HashMap<ParamId, Tensor<1>> {
        let mut read = Self {
            wanted: wanted.into_iter().collect(),
            values: HashMap::new(),
        };
        model.visit(&mut read);
        read.values
    }
}

impl ModuleVisitor for ReadValues {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.wanted.remove(&param.id) {
            let base = param.base().without_autodiff();
            self.values.insert(param.id, base.reshape([-1]));
        }
    }
}
