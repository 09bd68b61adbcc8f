//! [`MeshAxis`]: the directions in which work is split.

use std::fmt;
use std::str::FromStr;

use crate::error::DistError;

/// A direction of the mesh. A *dim* belongs to a tensor, an *axis* to the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MeshAxis {
    /// Pipeline stages: consecutive blocks of the model.
    Pp,
    /// Data parallelism with whole replicas.
    DpReplicate,
    /// Data parallelism with sharded state (ZeRO).
    DpShard,
    /// Context: parts of a sequence.
    Cp,
    /// Tensor parallelism: parts of a layer.
    Tp,
    /// Experts: a second view of the ranks of one pipeline stage.
    Ep,
}

impl MeshAxis {
    /// Every axis, outermost first.
    pub const ALL: [Self; 6] = [
        Self::Pp,
        Self::DpReplicate,
        Self::DpShard,
        Self::Cp,
        Self::Tp,
        Self::Ep,
    ];

    /// The axis' name, as in `dp_shard`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pp => "pp",
            Self::DpReplicate => "dp_replicate",
            Self::DpShard => "dp_shard",
            Self::Cp => "cp",
            Self::Tp => "tp",
            Self::Ep => "ep",
        }
    }
}

impl fmt::Display for MeshAxis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for MeshAxis {
    type Err = DistError;

    fn from_str(text: &str) -> Result<Self, DistError> {
        Self::ALL
            .into_iter()
            .find(|axis| axis.name() == text)
            .ok_or_else(|| {
                DistError::config(
                    format!("there is no mesh axis {text:?}"),
                    "the axes are pp, dp_replicate, dp_shard, cp, tp and ep",
                )
            })
    }
}
