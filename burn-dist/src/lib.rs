//! Distributed training for Burn: world, mesh, process groups, collectives and data parallelism.
#![warn(missing_docs)]

pub mod backend;
pub mod collectives;
pub mod communicator;
pub mod data;
pub mod data_parallel;
mod error;
mod group;
pub mod mesh;

pub use error::{DistError, Result};
pub use group::ProcessGroup;
