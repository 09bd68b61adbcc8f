//! [`MemoryDevice`]: device calls on a device whose memory is ordinary memory, as that of CubeCL's CPU runtime.
#![allow(unsafe_code)]

use std::sync::Arc;

use burn::tensor::Device;
use burn_dist::communicator::{
    Call, Communicator, CommunicatorOptions, DeviceCall, DeviceCommunicator, DeviceWork,
    HostBuffer, Members, MemoryPool, PendingDeviceCall, Traffic, Work,
};
use burn_dist::{DistError, Result};

/// Leaves host memory to another communicator, and lets that one move copies of what is in the memory of `device`.
#[derive(Debug)]
pub struct MemoryDevice {
    inner: Arc<dyn Communicator>,
    device: Device,
}

impl MemoryDevice {
    /// Beside `inner`. An address in the memory of `device` must be one of this process.
    pub fn new(inner: Arc<dyn Communicator>, device: &Device) -> Self {
        let device = device.clone().inner();
        Self { inner, device }
    }
}

impl Communicator for MemoryDevice {
    fn members(&self) -> &Members {
        self.inner.members()
    }

    fn start(&self, call: Call) -> Work {
        self.inner.start(call)
    }

    fn run(&self, call: Call) -> Result<HostBuffer> {
        self.inner.run(call)
    }

    fn pool(&self) -> &MemoryPool {
        self.inner.pool()
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }

    fn failure(&self) -> Option<DistError> {
        self.inner.failure()
    }

    fn abort(&self, cause: DistError) {
        self.inner.abort(cause);
    }

    fn device(&self) -> Option<&dyn DeviceCommunicator> {
        Some(self)
    }
}

impl DeviceCommunicator for MemoryDevice {
    fn array_device(&self) -> Device {
        self.device.clone()
    }

    fn split(
        &self,
        inner: Arc<dyn Communicator>,
        _options: CommunicatorOptions,
    ) -> Result<Arc<dyn Communicator>> {
        Ok(Arc::new(Self::new(inner, &self.device)))
    }

    unsafe fn start(&self, call: DeviceCall) -> Result<DeviceWork> {
        // What was submitted before is carried out, and what the input holds is there.
        self.device.sync().map_err(|error| {
            DistError::config(format!("the device failed: {error}"), "look at its error")
        })?;
        let mut input = HostBuffer::zeros(call.dtype, call.shape.clone());
        // SAFETY: the caller vouches for an array of this shape at this address, and keeps it until the work is done.
        unsafe { copy(call.send as *const u8, input.bytes_mut()) };
        let label = call.host_label();
        let staged = Call::new(call.operation.clone(), input).at(call.site);
        let work = self.inner.start(staged.labelled(label));
        Ok(DeviceWork::new(Box::new(Pending(Some((work, call))))))
    }
}

/// # Safety
/// As many bytes as `to` has can be read from `from`.
unsafe fn copy(from: *const u8, to: &mut [u8]) {
    if !to.is_empty() {
        // SAFETY: the caller's; memory of a tensor and a buffer of this process do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    }
}

/// A call between its start and its wait.
#[derive(Debug)]
struct Pending(Option<(Work, DeviceCall)>);

impl PendingDeviceCall for Pending {
    fn is_done(&self) -> bool {
        self.0.as_ref().is_none_or(|(work, _)| work.is_done())
    }

    fn join(&mut self) -> Result<()> {
        let Some((work, call)) = self.0.take() else {
            return Ok(());
        };
        let output = work.wait()?;
        let bytes = output.bytes();
        if !bytes.is_empty() {
            // SAFETY: the caller of `start` vouched for room for the output here, which the call keeps.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), call.receive as *mut u8, bytes.len());
            }
        }
        Ok(())
    }
}
