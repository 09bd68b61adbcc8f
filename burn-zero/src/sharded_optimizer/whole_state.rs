//! State and parameters as one device would have them, to save and to start from.

use std::collections::HashMap;

use burn::module::ParamId;
use burn::optim::OptimizerRecord;
use burn::tensor::{Bytes, Tensor};
use burn_dist::Result;

use super::ShardedOptimizer;
use super::sharded_optimizer::Ownership;
use crate::optimizer_state::{Held, StateMap, cut_state, gather_state};

impl ShardedOptimizer {
    /// The optimizer's state for whole parameters, which an optimizer on one device can load; on the group's
    /// first rank, `None` on others. Collective: each rank sends its part.
    ///
    /// # Errors
    /// [`DistError::Config`](burn_dist::DistError::Config) for a state that is not cut by elements; else what the group met.
    pub fn gather_state(&self) -> Result<Option<OptimizerRecord>> {
        let own = self.optimizer.to_record();
        gather_state(own, &self.state_map(), self.group())
    }

    /// Starts from the state of an optimizer of whole parameters, as a record's bytes, the same on all ranks. To be
    /// called before the first step. Local.
    ///
    /// # Errors
    /// [`DistError::Config`](burn_dist::DistError::Config) for a record of another model, or of another optimizer.
    pub fn load_state(&mut self, whole: Bytes) -> Result<()> {
        self.optimizer = cut_state(
            self.optimizer.clone(),
            whole,
            &self.state_map(),
            self.group(),
        )?;
        Ok(())
    }

    /// The trained parameters as they are stepped, flat, where the model has them in fewer bits; nothing where they
    /// are not wanted. Collective if there are such: an all_gather for each unit.
    ///
    /// # Errors
    /// What the group met.
    pub fn gather_masters(&self, wanted: bool) -> Result<HashMap<ParamId, Tensor<1>>> {
        let Ownership::Pieces(pieces) = &self.ownership else {
            return Ok(HashMap::new());
        };
        let masters = pieces.gather_masters(&self.parallel, self.layout(), wanted)?;
        let specs = self.parallel.parameters().specs();
        let masters = masters.into_iter().flatten();
        Ok(masters
            .map(|(number, value)| (specs[number].id, value))
            .collect())
    }

    fn state_map(&self) -> StateMap {
        let mut map = StateMap::default();
        let specs = self.parallel.parameters().specs();
        match &self.ownership {
            Ownership::Whole(owners) => {
                for (spec, &owner) in specs.iter().zip(owners) {
                    map.insert(spec.id, Held::Whole { owner: Some(owner) });
                }
            }
            Ownership::Pieces(_) => {
                let layout = self.layout();
                for unit in 0..layout.num_units() {
                    for (parameter, elements) in layout.elements(unit) {
                        let shape = specs[parameter].shape.clone();
                        map.insert(specs[parameter].id, Held::Cut { shape, elements });
                    }
                }
            }
        }
        map
    }
}
