//! State and parameters as one device would have them, to save and to start from.

use std::collections::HashMap;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::tensor::{Bytes, Tensor};
use burn_dist::{DistError, Result};

use super::FullySharded;
use crate::optimizer_state::{Held, StateMap, gather_state};
use crate::whole_values::{SetValues, WholeUnits};

/// This rank's pieces, by their parameters.
#[derive(Default)]
struct ReadPieces(HashMap<ParamId, Tensor<1>>);

impl ModuleVisitor for ReadPieces {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let base = param.base().without_autodiff();
        self.0.entry(param.id).or_insert_with(|| base.reshape([-1]));
    }
}

impl FullySharded {
    /// The state for whole parameters of an optimizer that steps the wrapped model, which an optimizer on one device
    /// can load; on the first rank of the group of shards, `None` on others. Collective: each rank sends its part.
    ///
    /// # Errors
    /// [`DistError::Config`] for a state that is not cut by elements; else what the group met.
    pub fn gather_state(&self, optimizer: &ModuleOptimizer) -> Result<Option<OptimizerRecord>> {
        self.check()?;
        gather_state(optimizer.to_record(), &self.state_map(), self.group())
    }

    /// A new optimizer for the wrapped model with the state of one of whole parameters, as a record's bytes, the same
    /// on all ranks. Local.
    ///
    /// # Errors
    /// [`DistError::Config`] for a record of another model, or of another optimizer.
    pub fn load_state(&self, optimizer: ModuleOptimizer, whole: Bytes) -> Result<ModuleOptimizer> {
        let own = self.state_map().cut(whole, self.group().index())?;
        let (expected, optimizer) = (own.len(), optimizer.load_record(own));
        let got = optimizer.to_record().len();
        if got != expected {
            return Err(DistError::config(
                format!(
                    "rank {}: the state has {expected} tensors for this optimizer, which took {got}",
                    self.group().rank()
                ),
                "load the state of the same kind of optimizer",
            ));
        }
        Ok(optimizer)
    }

    /// As [`materialize`](Self::materialize), with parameters as they are kept: with the master weights in place of
    /// those of fewer bits. Collective: two gathers per unit.
    ///
    /// # Errors
    /// As [`materialize`](Self::materialize).
    pub fn materialize_masters<M: Module>(&self, model: M) -> Result<M> {
        let plan = &self.context.plan;
        if plan.parameters.iter().all(|p| p.master == p.param) {
            return self.materialize(model);
        }
        let mut own = ReadPieces::default();
        model.visit(&mut own);
        let first = |unit: usize| &plan.parameters[plan.units[unit].parameters[0]];
        let device = self.context.device.clone().inner();
        let units = WholeUnits {
            group: self.group(),
            layout: &plan.layout,
            device: &|_| device.clone(),
            dtype: &|unit| first(unit).master,
        };
        let id = |unit: usize, parameter: usize| {
            plan.parameters[plan.units[unit].parameters[parameter]].id
        };
        let piece = |id: ParamId| {
            let piece = own.0.get(&id).cloned();
            piece.expect("invariant: a wrapped model shows its pieces")
        };
        let values = units.gather(|cut| piece(id(cut.unit, cut.parameter)))?;
        let split = values.into_iter();
        let split = split.map(|((unit, parameter), value)| (id(unit, parameter), value));
        let whole = plan.parameters.iter().filter(|p| plan.is_whole(p.unit));
        let whole = whole.map(|parameter| (parameter.id, piece(parameter.id)));
        let values = split.chain(whole).collect();
        Ok(self.materialize(model)?.map(&mut SetValues(values)))
    }

    fn state_map(&self) -> StateMap {
        let plan = &self.context.plan;
        let mut map = StateMap::default();
        for parameter in &plan.parameters {
            map.insert(parameter.id, Held::Whole { owner: None });
        }
        for unit in 0..plan.layout.num_units() {
            for (place, elements) in plan.layout.elements(unit) {
                let parameter = &plan.parameters[plan.units[unit].parameters[place]];
                let shape = parameter.shape.clone();
                map.insert(parameter.id, Held::Cut { shape, elements });
            }
        }
        map
    }
}
