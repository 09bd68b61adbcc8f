//! [`NcclRuntime`]: what a rank needs before it makes groups.

use std::path::Path;
use std::sync::Arc;

use super::cuda_driver::CudaDriver;
use super::device_context::DeviceContext;
use super::nccl_library::NcclLibrary;
use crate::error::{DistError, Result};

/// NCCL and one device of CUDA, both there. Cheap to clone.
#[derive(Debug, Clone)]
pub struct NcclRuntime {
    library: NcclLibrary,
    context: Arc<DeviceContext>,
    device: usize,
}

impl NcclRuntime {
    /// Finds CUDA's driver, the device of this index, and NCCL at `library`, or where
    /// [`NcclLibrary::load`] looks. `local_size` is the number of ranks on this host.
    ///
    /// # Errors
    /// [`DistError::Config`], of its own for each of what can be missing; as [`CudaDriver::load`] and
    /// [`NcclLibrary::load`], and for a device that is not there.
    pub fn start(library: Option<&Path>, device: usize, local_size: usize) -> Result<Self> {
        let driver = CudaDriver::load()?;
        driver.check_device(device, local_size)?;
        Self::new(NcclLibrary::load(library)?, &driver, device, local_size)
    }

    pub(super) fn new(
        library: NcclLibrary,
        driver: &CudaDriver,
        device: usize,
        local_size: usize,
    ) -> Result<Self> {
        driver.check_device(device, local_size)?;
        let context = DeviceContext::new(driver, device).map_err(|problem| {
            DistError::config(
                format!(
                    "CUDA device {device} ({}) cannot be used: {problem}",
                    driver.device_name(device)
                ),
                "see what `nvidia-smi` says; another process may hold the device or its memory",
            )
        })?;
        Ok(Self {
            library,
            context,
            device,
        })
    }

    /// NCCL.
    pub fn library(&self) -> &NcclLibrary {
        &self.library
    }

    /// The device, as CUDA counts.
    pub fn device_index(&self) -> usize {
        self.device
    }

    pub(super) fn context(&self) -> &Arc<DeviceContext> {
        &self.context
    }
}

#[cfg(test)]
mod tests;
