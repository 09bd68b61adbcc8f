//! [`PendingDeviceCall`]: a device call that was started, as its communicator knows it.

use std::fmt::Debug;

use crate::error::Result;

/// What a communicator knows about a device call that it has started. It owns the call's memory.
pub trait PendingDeviceCall: Debug + Send {
    /// Whether the device has carried the call out.
    fn is_done(&self) -> bool;

    /// Lets what is submitted to the device from now on wait for the call, and gives the call's memory back. Called
    /// once.
    ///
    /// # Errors
    /// As [`DeviceWork::wait`](super::DeviceWork::wait).
    fn join(&mut self) -> Result<()>;
}
