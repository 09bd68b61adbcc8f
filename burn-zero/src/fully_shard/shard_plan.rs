//! [`ShardPlan`]: where each parameter lies, and in which types. Pure.

use std::ops::Range;

use burn::module::ParamId;
use burn::tensor::DType;
use burn_dist::communicator::HostBuffer;
use burn_dist::data_parallel::ParameterSpec;
use burn_dist::placement::AxisPlacement;

use super::unit_policy::Planned;
use super::{MixedPrecisionPolicy, ShardUnit, UnitPolicy};
use crate::ShardLayout;

/// A trained parameter of the wrapped model.
#[derive(Debug, Clone)]
pub(crate) struct ManagedParameter {
    pub(crate) name: String,
    pub(crate) id: ParamId,
    pub(crate) shape: Vec<usize>,
    /// As the model sees it.
    pub(crate) param: DType,
    /// As it is kept.
    pub(crate) master: DType,
    /// Its unit; those of whole parameters come after the layout's.
    pub(crate) unit: usize,
    /// Its elements in the unit.
    pub(crate) place: Range<usize>,
    pub(crate) recurrent: bool,
    pub(crate) placements: Vec<AxisPlacement>,
}

impl ManagedParameter {
    pub(crate) fn num_elements(&self) -> usize {
        self.place.len()
    }
}

/// Units of the trained parameters, and how those that are split lie on the ranks.
#[derive(Debug)]
pub(crate) struct ShardPlan {
    pub(crate) parameters: Vec<ManagedParameter>,
    /// Split ones first, as in the layout; then those of whole parameters.
    pub(crate) units: Vec<ShardUnit>,
    /// In which types the units' gradients are summed.
    pub(crate) sum_dtypes: Vec<DType>,
    /// Of the split units; parameters are numbered inside each.
    pub(crate) layout: ShardLayout,
}

impl ShardPlan {
    /// Over `ranks` ranks; units follow a policy, small ones joined.
    pub(crate) fn new(
        specs: &[&ParameterSpec],
        whole: impl Fn(&ParameterSpec) -> bool,
        precision: &MixedPrecisionPolicy,
        (policy, least): (&UnitPolicy, usize),
        ranks: usize,
    ) -> Self {
        let kinds: Vec<Kind> = specs
            .iter()
            .map(|spec| Kind::of(spec.dtype, precision, whole(spec)))
            .collect();
        let planned = |whole: bool| -> Vec<Planned<'_, Kind>> {
            let chosen = (0..specs.len()).filter(|&number| kinds[number].whole == whole);
            let planned = |number: usize| Planned {
                number,
                name: &specs[number].name,
                bytes: specs[number].num_elements() * kinds[number].param.size(),
                kind: kinds[number],
            };
            chosen.map(planned).collect()
        };
        let mut units = policy.plan(&planned(false), least);
        let length =
            |(position, &number): (usize, &usize)| (position, specs[number].num_elements());
        let split = units.iter().map(|unit| {
            let members = unit.parameters.iter().enumerate();
            members.map(length).collect()
        });
        let layout = ShardLayout::new(split.collect(), ranks);
        let stay = UnitPolicy::Whole.plan(&planned(true), 0).into_iter();
        units.extend(stay.map(|unit| ShardUnit {
            name: "the parameters that stay whole".into(),
            ..unit
        }));
        let mut places = vec![(0, 0..0); specs.len()];
        for (unit, members) in units.iter().enumerate() {
            let mut start = 0;
            for &number in &members.parameters {
                let end = start + specs[number].num_elements();
                places[number] = (unit, start..end);
                start = end;
            }
        }
        let parameters = specs.iter().zip(places).zip(&kinds);
        Self {
            parameters: parameters
                .map(|((spec, (unit, place)), kind)| ManagedParameter {
                    name: spec.name.clone(),
                    id: spec.id,
                    shape: spec.shape.clone(),
                    param: kind.param,
                    master: kind.master,
                    unit,
                    place,
                    recurrent: spec.recurrent,
                    placements: spec.placements.clone(),
                })
                .collect(),
            sum_dtypes: units
                .iter()
                .map(|u| kinds[u.parameters[0]].reduce)
                .collect(),
            units,
            layout,
        }
    }

    /// Whether each rank keeps all of this unit.
    pub(crate) fn is_whole(&self, unit: usize) -> bool {
        unit >= self.layout.num_units()
    }

    /// Elements of a unit's sum, padding included.
    pub(crate) fn padded_len(&self, unit: usize) -> usize {
        match self.is_whole(unit) {
            true => {
                let last = self.units[unit].parameters.last();
                last.map_or(0, |&last| self.parameters[last].place.end)
            }
            false => self.layout.part_len(unit) * self.layout.ranks(),
        }
    }
}

/// What the parameters of a unit have in common.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Kind {
    param: DType,
    reduce: DType,
    master: DType,
    whole: bool,
}

impl Kind {
    fn of(dtype: DType, policy: &MixedPrecisionPolicy, whole: bool) -> Self {
        let param = policy.param.unwrap_or(dtype);
        Self {
            param,
            reduce: policy.reduce.unwrap_or(HostBuffer::sum_dtype(param)),
            master: policy.master.unwrap_or(HostBuffer::sum_dtype(dtype)),
            whole,
        }
    }
}
