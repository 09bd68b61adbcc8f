//! [`GradientGroups`]: the ranks that share gradients and parameters, with their traffic counted.

use std::sync::Arc;

use burn_dist::communicator::RecordingCommunicator;
use burn_dist::mesh::{DeviceMesh, MeshAxis, ParallelDims};
use burn_dist::{ProcessGroup, Result, World};

/// The group over which parameters are split, or all ranks; and that of replicas, if there are several.
pub(super) struct GradientGroups {
    pub(super) shard: ProcessGroup,
    pub(super) replicate: Option<ProcessGroup>,
}

impl GradientGroups {
    /// Groups of their own, so that their bytes are counted alone. Collective.
    pub(super) fn new(world: &World, replicas: usize) -> Result<Self> {
        let counted = |group: ProcessGroup| {
            let communicator = group.communicator().clone();
            ProcessGroup::new(Arc::new(RecordingCommunicator::new(communicator)))
        };
        if replicas == 1 {
            return Ok(Self {
                shard: counted(world.whole()?),
                replicate: None,
            });
        }
        let dims = ParallelDims {
            dp_replicate: replicas,
            dp_shard: ParallelDims::REST,
            ..ParallelDims::default()
        };
        let mesh = DeviceMesh::new(dims, world.world_size())?;
        Ok(Self {
            shard: counted(world.axis_group(&mesh, &[MeshAxis::DpShard])?),
            replicate: Some(counted(world.axis_group(&mesh, &[MeshAxis::DpReplicate])?)),
        })
    }

    /// Bytes that this rank has sent.
    pub(super) fn sent(&self) -> u64 {
        let groups = [Some(&self.shard), self.replicate.as_ref()];
        let sent = groups.into_iter().flatten();
        sent.map(|group| group.traffic().total_sent()).sum()
    }

    pub(super) fn num_replicas(&self) -> usize {
        self.replicate.as_ref().map_or(1, ProcessGroup::size)
    }
}
