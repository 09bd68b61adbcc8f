//! What most programs name: `use burn_dist::prelude::*`.

pub use crate::collectives::{all_gather, all_reduce, broadcast, reduce_scatter};
pub use crate::communicator::ReduceOp;
pub use crate::data::{DistributedSampler, Remainder, SamplerOptions, SkippingLoader};
pub use crate::data_parallel::{DataParallel, DataParallelConfig};
pub use crate::error::DistError;
pub use crate::fused::{FusedAdamW, FusedSgd};
pub use crate::group::ProcessGroup;
pub use crate::mesh::{DeviceMesh, MeshAxis, ParallelDims};
pub use crate::tensor_parallel::TensorParallel;
#[cfg(feature = "train")]
pub use crate::train::{BatchSplit, Distributed, GradientReduction, LastRound, RankOutput};
pub use crate::world::{World, WorldOptions, launch_threads};
