//! NCCL at the start of a world: everything that it needs is there, or an error says what is not.

use std::path::Path;
use std::sync::Arc;

use super::WorldOptions;
use crate::communicator::{Communicator, CommunicatorOptions};
use crate::error::Result;

/// What a world keeps for the groups that it makes.
#[cfg(feature = "cuda")]
pub(super) type Nccl = crate::communicator::NcclRuntime;
/// There is none without CUDA.
#[cfg(not(feature = "cuda"))]
#[derive(Debug, Clone)]
pub(super) enum Nccl {}

/// Starts NCCL if the options ask for it, on the device `beyond` theirs.
#[cfg(feature = "cuda")]
pub(super) fn start(
    options: &WorldOptions,
    library: Option<&Path>,
    beyond: usize,
    local_size: usize,
) -> Result<Option<Nccl>> {
    let device = options.nccl.map(|device| device + beyond);
    device
        .map(|device| Nccl::start(library, device, local_size))
        .transpose()
}

/// Refuses options that ask for NCCL.
#[cfg(not(feature = "cuda"))]
pub(super) fn start(
    options: &WorldOptions,
    _library: Option<&Path>,
    _beyond: usize,
    _local_size: usize,
) -> Result<Option<Nccl>> {
    match options.nccl {
        None => Ok(None),
        Some(device) => Err(crate::error::DistError::config(
            format!(
                "NCCL on CUDA device {device} is asked for, but burn-dist was built without its feature `cuda`"
            ),
            "build with `--features cuda`, or leave `nccl` out of the world's options",
        )),
    }
}

/// The communicator, with NCCL beside it if the world has it. Collective.
pub(super) fn beside(
    nccl: Option<&Nccl>,
    communicator: Arc<dyn Communicator>,
    options: CommunicatorOptions,
) -> Result<Arc<dyn Communicator>> {
    match nccl {
        None => Ok(communicator),
        #[cfg(feature = "cuda")]
        Some(runtime) => {
            let both = crate::communicator::NcclCommunicator::new(runtime, communicator, options)?;
            Ok(Arc::new(both))
        }
        #[cfg(not(feature = "cuda"))]
        Some(never) => {
            let _ = options;
            match *never {}
        }
    }
}
