//! [`ShardGroups`]: the ranks over which a model is split and repeated.

use burn_dist::{DistError, ProcessGroup, Result};

/// Groups over which a model is split and repeated.
#[derive(Debug, Clone)]
pub(crate) struct ShardGroups {
    pub(crate) shard: ProcessGroup,
    pub(crate) replicate: Option<ProcessGroup>,
}

impl ShardGroups {
    /// Ranks that the mean is taken over.
    pub(crate) fn num_ranks(&self) -> usize {
        self.shard.size() * self.replicate.as_ref().map_or(1, ProcessGroup::size)
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.shard.check()?;
        self.replicate.as_ref().map_or(Ok(()), ProcessGroup::check)
    }

    pub(crate) fn abort(&self, cause: &DistError) {
        self.shard.abort(cause.clone());
        if let Some(group) = &self.replicate {
            group.abort(cause.clone());
        }
    }

    /// Shards and replicas must be the rows and columns of one grid.
    pub(crate) fn check_grid(&self) -> Result<()> {
        let (shard, Some(replicate)) = (&self.shard, &self.replicate) else {
            return Ok(());
        };
        let common: Vec<usize> = shard
            .ranks()
            .iter()
            .copied()
            .filter(|rank| replicate.ranks().contains(rank))
            .collect();
        let columns = shard.all_gather_values(vec![replicate.size() as u64])?;
        let rows = replicate.all_gather_values(vec![shard.size() as u64, shard.index() as u64])?;
        let place = vec![shard.size() as u64, shard.index() as u64];
        let alike = columns
            .iter()
            .all(|size| size[0] == replicate.size() as u64)
            && rows.iter().all(|row| *row == place);
        if common == [shard.rank()] && alike {
            return Ok(());
        }
        Err(DistError::config(
            format!(
                "rank {}: the group of shards {:?} and the group of replicas {:?} are not a row and a column of one mesh",
                shard.rank(),
                shard.ranks(),
                replicate.ranks()
            ),
            "take both from one DeviceMesh: the axes DpShard and DpReplicate",
        ))
    }
}
