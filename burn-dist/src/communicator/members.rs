//! [`Members`]: who is in a group, and which of them this rank is.

use std::sync::Arc;

use crate::error::{DistError, Result};

/// Ordered global ranks of a group, its name, and this rank's index among them.
///
/// *rank* is global, *index* is the position inside the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members {
    name: Arc<str>,
    ranks: Arc<[usize]>,
    index: usize,
}

impl Members {
    /// A group named `name` of `ranks` in this order, seen from global rank `rank`.
    ///
    /// # Errors
    /// [`DistError::Config`] if `ranks` is empty, names a rank twice or lacks `rank`.
    pub fn new(name: impl Into<Arc<str>>, ranks: &[usize], rank: usize) -> Result<Self> {
        let name = name.into();
        let mut sorted = ranks.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        if ranks.is_empty() || sorted.len() != ranks.len() {
            return Err(DistError::config(
                format!("group {name} of ranks {ranks:?} is empty or names a rank twice"),
                "give each rank once",
            ));
        }
        let index = ranks.iter().position(|&r| r == rank).ok_or_else(|| {
            DistError::config(
                format!("rank {rank} is not in group {name} of ranks {ranks:?}"),
                "only members may make or use a group",
            )
        })?;
        Ok(Self {
            name,
            ranks: ranks.into(),
            index,
        })
    }

    /// The group's name, as it stands in errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Global ranks in group order.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// This rank's position in the group.
    pub fn index(&self) -> usize {
        self.index
    }

    /// This rank's global rank.
    pub fn rank(&self) -> usize {
        self.ranks[self.index]
    }

    /// Number of members.
    pub fn size(&self) -> usize {
        self.ranks.len()
    }
}
