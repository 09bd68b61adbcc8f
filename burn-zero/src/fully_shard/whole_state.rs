//! State and parameters as one device would have them, to save and to start from.

use std::collections::HashMap;

use burn::module::{Module, ParamId};
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::tensor::{Bytes, Tensor};
use burn_dist::{DistError, Result};

use super::FullySharded;
use crate::optimizer_state::{Held, StateMap, cut_state, gather_state};
use crate::whole_values::{ReadValues, WholeUnits};

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
        cut_state(optimizer, whole, &self.state_map(), self.group())
    }

    /// The parameters as they are kept, flat, by their own identifiers; nothing where they are not wanted.
    /// Collective: an all_gather for each unit, one after the other.
    ///
    /// # Errors
    /// [`DistError::Config`] for a model that is not the wrapped one; else what the group met, now or before.
    pub fn gather_values<M: Module>(
        &self,
        model: &M,
        wanted: bool,
    ) -> Result<HashMap<ParamId, Tensor<1>>> {
        self.check()?;
        let plan = &self.context.plan;
        let own = ReadValues::of(model, plan.parameters.iter().map(|p| p.id));
        if let Some(missing) = plan.parameters.iter().find(|p| !own.contains_key(&p.id)) {
            return Err(DistError::config(
                format!(
                    "rank {}: the model shows no piece of {}",
                    self.group().rank(),
                    missing.name
                ),
                "pass the model that FullyShard::wrap returned, or one that was made of it",
            ));
        }
        let of_unit =
            |unit: usize, place: usize| &plan.parameters[plan.units[unit].parameters[place]];
        let device = self.context.device.clone().inner();
        let units = WholeUnits {
            group: self.group(),
            layout: &plan.layout,
            device: &|_| device.clone(),
            dtype: &|unit| of_unit(unit, 0).master,
        };
        let piece = |id: ParamId| {
            let piece = own.get(&id).cloned();
            piece.expect("invariant: looked for before")
        };
        let values = units.gather(wanted, |cut| piece(of_unit(cut.unit, cut.parameter).id))?;
        let split = values.into_iter();
        let split = split.map(|((unit, place), value)| (of_unit(unit, place).id, value));
        let whole = plan.parameters.iter().filter(|p| plan.is_whole(p.unit));
        let whole = whole.map(|parameter| (parameter.id, piece(parameter.id)));
        Ok(split.chain(whole).collect())
    }

    fn state_map(&self) -> StateMap {
        let plan = &self.context.plan;
        let mut map = StateMap::default();
        for parameter in plan.parameters.iter().filter(|p| plan.is_whole(p.unit)) {
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
