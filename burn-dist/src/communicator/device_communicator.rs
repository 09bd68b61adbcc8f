//! [`DeviceCommunicator`]: calls on arrays that are in a device's memory, and stay there.
#![allow(unsafe_code)]

use std::fmt::Debug;
use std::sync::Arc;

use burn::tensor::Device;

use super::{Communicator, CommunicatorOptions, DeviceCall, DeviceWork};
use crate::error::Result;

/// What a [`Communicator`](super::Communicator) offers beside calls on host memory, where its members have devices
/// that reach each other.
///
/// Members make the same device calls in the same order, and in one order with their host calls.
pub trait DeviceCommunicator: Debug + Send + Sync {
    /// The device in whose memory arrays must be.
    fn array_device(&self) -> Device;

    /// Parts the group: `inner` is a communicator, for host memory, of this rank's part, and gets one for device
    /// memory beside it that comes out of this one's, without another rendezvous. All members call this at once, each for the part that it
    /// is in.
    ///
    /// # Errors
    /// [`DistError::Config`](crate::DistError::Config) if the part is none of this group;
    /// [`DistError::Rendezvous`](crate::DistError::Rendezvous) if not all members come in time. Either ends this group.
    fn split(
        &self,
        inner: Arc<dyn Communicator>,
        options: CommunicatorOptions,
    ) -> Result<Arc<dyn Communicator>>;

    /// Starts a call behind everything that was submitted to the device before. Waits until the other members
    /// have started theirs, unless calls are not compared; never for the device itself.
    ///
    /// # Errors
    /// [`DistError::InvalidCall`](crate::DistError::InvalidCall) for what this rank can see to be wrong, also an
    /// element type that the device's library cannot reduce; else as [`Work::wait`](super::Work::wait).
    ///
    /// # Safety
    /// The addresses of the call are those of arrays as it describes, in the memory of
    /// [`array_device`](Self::array_device), for as long as `keep` is there. Nothing else uses the output before the
    /// work was waited for.
    unsafe fn start(&self, call: DeviceCall) -> Result<DeviceWork>;
}
