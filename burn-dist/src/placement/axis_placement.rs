//! [`AxisPlacement`]: a parameter and its gradient over one axis.

use std::fmt;

use super::Placement;
use crate::communicator::ReduceOp;
use crate::mesh::MeshAxis;

/// How a parameter lies over the ranks of one axis, and how its gradient comes out of the layer before
/// anything reduces it over that axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AxisPlacement {
    /// The axis.
    pub axis: MeshAxis,
    /// Global ranks on the axis, in group order.
    pub ranks: Vec<usize>,
    /// Of the parameter.
    pub parameter: Placement,
    /// Of its gradient. Of a parameter whose layer sees the same tokens on all ranks: as the parameter.
    /// [`Placement::Partial`] if the ranks see different tokens.
    pub gradient: Placement,
}

impl AxisPlacement {
    /// The reduction over the axis that makes the gradient lie as the parameter does; the layer that
    /// declares it carries it out in its backward pass.
    pub fn reduction(&self) -> Option<ReduceOp> {
        match (self.parameter, self.gradient) {
            (Placement::Replicate, Placement::Partial(op)) => Some(op),
            _ => None,
        }
    }

    /// Whether each rank holds other elements.
    pub fn is_shard(&self) -> bool {
        matches!(self.parameter, Placement::Shard(_))
    }

    /// The members of the axis that are among `ranks`.
    pub fn shared_with(&self, ranks: &[usize]) -> Vec<usize> {
        let own = self.ranks.iter().copied();
        own.filter(|rank| ranks.contains(rank)).collect()
    }
}

impl fmt::Display for AxisPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} over {} {:?}", self.parameter, self.axis, self.ranks)?;
        match self.reduction() {
            Some(_) => write!(f, ", gradient {} reduced by its layer", self.gradient),
            None => Ok(()),
        }
    }
}
