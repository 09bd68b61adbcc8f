//! [`DeviceWork`]: a device call that was started.

use super::PendingDeviceCall;
use crate::error::Result;

/// A started call of a device. [`DeviceWork::wait`] makes the device wait for it, not this thread.
///
/// Dropped, it waits as well: the memory of a call is given back behind the call.
#[must_use = "the device does not wait for the call before `wait`"]
#[derive(Debug)]
pub struct DeviceWork(Option<Box<dyn PendingDeviceCall>>);

impl DeviceWork {
    /// A handle of what a communicator has started.
    pub fn new(pending: Box<dyn PendingDeviceCall>) -> Self {
        Self(Some(pending))
    }

    /// Whether the device has carried the call out.
    pub fn is_done(&self) -> bool {
        self.0.as_ref().is_none_or(|pending| pending.is_done())
    }

    /// Lets everything that is submitted to the device from now on wait for the call. Returns at once.
    ///
    /// # Errors
    /// The group's failure, as far as it is known now; one that comes to light later is returned by the next call
    /// and by [`ProcessGroup::check`](crate::ProcessGroup::check), and what the output then holds is of no use.
    pub fn wait(mut self) -> Result<()> {
        match self.0.take() {
            Some(mut pending) => pending.join(),
            None => Ok(()),
        }
    }
}

impl Drop for DeviceWork {
    fn drop(&mut self) {
        if let Some(mut pending) = self.0.take() {
            // A failure has poisoned the group, which says so.
            let _ = pending.join();
        }
    }
}
