//! Values that ranks keep in pieces, whole again.

use std::collections::HashMap;

use burn::module::{ModuleMapper, Param, ParamId};
use burn::tensor::{DType, Device, Tensor};
use burn_dist::backend::{FlatMemory, FlatWork};
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
    /// All values, flat, by the unit and the parameter's number in it, from this rank's pieces. Collective: an
    /// all_gather for each unit.
    pub(crate) fn gather(
        &self,
        value: impl Fn(&ShardPiece) -> Tensor<1>,
    ) -> Result<Vec<((usize, usize), Tensor<1>)>> {
        let works = (0..self.layout.num_units())
            .map(|unit| {
                let device = (self.device)(unit);
                let pieces = self.layout.pieces(unit, self.group.index()).into_iter();
                let own = FlatMemory::of(self.group, &device).join(
                    (self.dtype)(unit),
                    self.layout.part_len(unit),
                    pieces.map(|piece| (piece.place.clone(), value(&piece))),
                )?;
                Ok(own.start(Operation::AllGather, self.group, None))
            })
            .collect::<Result<Vec<FlatWork>>>()?;
        let mut values = Vec::new();
        for (unit, work) in works.into_iter().enumerate() {
            let whole = work.wait()?.into_tensor(&(self.device)(unit));
            for (parameter, place) in self.layout.places(unit) {
                values.push(((unit, parameter), whole.clone().slice([place])));
            }
        }
        Ok(values)
    }
}

/// Gives parameters new values, flat ones, in the values' own type.
pub(crate) struct SetValues(pub(crate) HashMap<ParamId, Tensor<1>>);

impl ModuleMapper for SetValues {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(value) = self.0.get(&param.id).cloned() else {
            return param;
        };
        param.map(|old| {
            let value: Tensor<D> = value.reshape(old.dims()).to_device(&old.device().inner());
            if !old.is_autodiff() {
                return value;
            }
            Tensor::from_inner(value).set_require_grad(old.is_require_grad())
        })
    }
}
