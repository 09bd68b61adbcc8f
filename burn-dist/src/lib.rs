//! Distributed training for Burn: world, mesh, process groups, collectives, data, tensor and sequence parallelism.
#![warn(missing_docs)]

pub mod backend;
pub mod batch_norm;
pub mod collectives;
pub mod communicator;
pub mod data;
pub mod data_parallel;
mod deadline;
mod error;
pub mod flight;
pub mod fused;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(all(test, not(fuzzing)))]
mod fuzzing;
mod group;
pub mod kernels;
pub mod mesh;
pub mod placement;
pub mod prelude;
pub mod random;
pub mod tensor_parallel;
#[cfg(feature = "train")]
pub mod train;
pub mod world;

pub use error::{DistError, Result};
pub use group::ProcessGroup;
pub use world::{
    ExitReport, OutputStyle, ProcessLaunch, World, WorldOptions, launch_processes, launch_threads,
};
