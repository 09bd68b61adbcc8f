//! [`ModelParallel`]: the ranks that hold other parts of the model.

use burn::module::ParamId;
use burn_dist::mesh::MeshAxis;
use burn_dist::placement::AxisPlacement;
use burn_dist::{DistError, ProcessGroup, Result};

use crate::NormSum;

/// The groups over which a model itself is split, so that a norm goes over all of it: an element that is on
/// one rank only counts there, one that is on all counts once. Which is which, the layers declare
/// ([`LayerPlacement`](burn_dist::placement::LayerPlacement)). Empty by default.
#[derive(Debug, Clone, Default)]
pub struct ModelParallel {
    groups: Vec<(MeshAxis, ProcessGroup)>,
    elsewhere: Vec<ParamId>,
}

impl ModelParallel {
    /// Of a model whose layers are whole on every rank.
    pub fn new() -> Self {
        Self::default()
    }

    /// And split over the ranks of `group`, which lie on `axis`.
    pub fn over(mut self, axis: MeshAxis, group: &ProcessGroup) -> Self {
        self.groups.push((axis, group.clone()));
        self
    }

    /// And with a parameter of this rank that is a copy of one that another rank counts, as that of a tied
    /// embedding in the last stage of a pipeline.
    pub fn counted_elsewhere(mut self, copy: ParamId) -> Self {
        self.elsewhere.push(copy);
        self
    }

    /// Refuses a parameter that is split over ranks of no group.
    pub(crate) fn check(&self, name: &str, placements: &[AxisPlacement]) -> Result<()> {
        for (number, (axis, group)) in self.groups.iter().enumerate() {
            let earlier = self.groups[..number].iter();
            let shared = earlier.filter(|(_, other)| {
                let common = other
                    .ranks()
                    .iter()
                    .filter(|rank| group.ranks().contains(rank));
                common.count() > 1
            });
            if let Some((other, _)) = shared.into_iter().next() {
                return Err(DistError::config(
                    format!(
                        "rank {}: the groups of axes {other} and {axis} share more than one rank: {:?} would count twice",
                        group.rank(),
                        group.ranks()
                    ),
                    "name each group once, on its own axis",
                ));
            }
        }
        let parts = placements
            .iter()
            .filter(|placement| placement.is_shard() && placement.ranks.len() > 1);
        for placement in parts {
            let has_group = self.groups.iter().any(|(axis, group)| {
                *axis == placement.axis && group.ranks() == placement.ranks.as_slice()
            });
            if !has_group {
                return Err(DistError::config(
                    format!(
                        "parameter {name} is {placement}: a norm over this rank's part alone would be wrong"
                    ),
                    format!(
                        "name that group: ModelParallel::new().over(MeshAxis::{:?}, &group)",
                        placement.axis
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Whether this rank counts a parameter's elements.
    pub(crate) fn counts(&self, id: ParamId, placements: &[AxisPlacement]) -> bool {
        let is_first = !self.elsewhere.contains(&id);
        is_first
            && self.groups.iter().all(|(axis, group)| {
                let is_part = placements
                    .iter()
                    .any(|placement| placement.axis == *axis && placement.is_shard());
                // Stages hold other parameters.
                *axis == MeshAxis::Pp || is_part || group.index() == 0
            })
    }

    /// Over all groups. Collective.
    pub(crate) fn sum(&self, mut sum: NormSum) -> Result<NormSum> {
        for (_, group) in self.groups.iter().filter(|(_, group)| group.size() > 1) {
            sum = sum.all_reduce(group)?;
        }
        Ok(sum)
    }
}
