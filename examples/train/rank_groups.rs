//! [`RankGroups`]: which ranks share what, with their traffic counted.

use std::sync::Arc;

use burn_dist::communicator::RecordingCommunicator;
use burn_dist::mesh::{DeviceMesh, MeshAxis, ParallelDims};
use burn_dist::{ProcessGroup, Result, World};
use burn_pipeline::PipelineLinks;
use burn_zero::ModelParallel;

use super::Arguments;

/// The groups of one rank.
pub(super) struct RankGroups {
    /// Over which parameters and gradients are split, or all data-parallel ranks.
    pub(super) shard: ProcessGroup,
    /// Of replicas, if there are several.
    pub(super) replicate: Option<ProcessGroup>,
    /// Over which layers are split.
    pub(super) tensor: Option<ProcessGroup>,
    /// All ranks that see other samples; not counted.
    pub(super) data: ProcessGroup,
    /// Of the stages of a model.
    pub(super) pipeline: Option<PipelineGroups>,
}

/// The groups of a pipeline.
pub(super) struct PipelineGroups {
    /// Over which a norm goes.
    pub(super) stages: ProcessGroup,
    /// For losses, and the whole model at the end; not counted.
    pub(super) losses: ProcessGroup,
    /// Over which activations go.
    links: Vec<ProcessGroup>,
}

impl RankGroups {
    /// Groups of their own, so that their bytes are counted alone, and a pipeline's links. Collective.
    pub(super) fn new(
        world: &World,
        arguments: &Arguments,
    ) -> Result<(Self, Option<PipelineLinks>)> {
        let counted = |group: ProcessGroup| {
            let communicator = group.communicator().clone();
            ProcessGroup::new(Arc::new(RecordingCommunicator::new(communicator)))
        };
        let dims = ParallelDims {
            dp_replicate: arguments.replicate,
            dp_shard: ParallelDims::REST,
            tp: arguments.tp,
            pp: arguments.pp,
            ..ParallelDims::default()
        };
        let mesh = DeviceMesh::new(dims, world.world_size())?;
        let group = |axes: &[MeshAxis]| world.axis_group(&mesh, axes);
        let counted_if = |wanted: bool, axis: MeshAxis| match wanted {
            true => Ok(Some(counted(group(&[axis])?))),
            false => Ok(None),
        };
        let (pipeline, links) = match arguments.is_piped() {
            true => {
                let links = PipelineLinks::new(world, &mesh)?;
                let pipeline = PipelineGroups {
                    stages: counted(group(&[MeshAxis::Pp])?),
                    losses: group(&[MeshAxis::Pp])?,
                    links: links.groups().cloned().collect(),
                };
                (Some(pipeline), Some(links))
            }
            false => (None, None),
        };
        let groups = Self {
            shard: counted(group(&[MeshAxis::DpShard])?),
            replicate: counted_if(arguments.replicate > 1, MeshAxis::DpReplicate)?,
            tensor: counted_if(arguments.tp > 1, MeshAxis::Tp)?,
            data: group(&[MeshAxis::DpReplicate, MeshAxis::DpShard])?,
            pipeline,
        };
        Ok((groups, links))
    }

    /// Bytes that this rank has sent.
    pub(super) fn sent(&self) -> u64 {
        let groups = [
            Some(&self.shard),
            self.replicate.as_ref(),
            self.tensor.as_ref(),
        ];
        let pipeline = self.pipeline.iter();
        let pipeline = pipeline.flat_map(|groups| groups.links.iter().chain([&groups.stages]));
        let sent = groups.into_iter().flatten().chain(pipeline);
        sent.map(|group| group.traffic().total_sent()).sum()
    }

    pub(super) fn num_replicas(&self) -> usize {
        self.replicate.as_ref().map_or(1, ProcessGroup::size)
    }

    /// The groups over which a norm goes besides the data-parallel ones.
    pub(super) fn model_parallel(&self) -> ModelParallel {
        let mut parts = ModelParallel::new();
        if let Some(tensor) = &self.tensor {
            parts = parts.over(MeshAxis::Tp, tensor);
        }
        if let Some(pipeline) = &self.pipeline {
            parts = parts.over(MeshAxis::Pp, &pipeline.stages);
        }
        parts
    }
}
