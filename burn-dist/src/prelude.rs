//! What most programs name.
//!
//! ```
//! use burn_dist::prelude::*;
//!
//! let sums = launch_threads(2, WorldOptions::default(), |world| {
//!     let group = world.whole()?;
//!     group.all_reduce_values(vec![world.rank() as u32 + 1], ReduceOp::Sum)
//! })?;
//! assert_eq!(sums, [[3], [3]]);
//! # Ok::<(), DistError>(())
//! ```

pub use crate::batch_norm::SyncBatchNorm;
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
