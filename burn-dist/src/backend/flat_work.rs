//! [`FlatWork`]: a started collective on a flat array.

use super::{FlatArray, StartedArray};
use crate::communicator::Work;
use crate::error::Result;

/// A started collective on a [`FlatArray`]; [`FlatWork::wait`] gives the output, in the memory of the input.
#[must_use = "a started collective has no output before `wait`"]
#[derive(Debug)]
pub enum FlatWork {
    /// In host memory.
    Host(Work),
    /// In device memory.
    Device(Box<StartedArray>),
}

impl FlatWork {
    /// Waits for the output: in device memory the device does, not this thread.
    ///
    /// # Errors
    /// What the group met.
    pub fn wait(self) -> Result<FlatArray> {
        Ok(match self {
            Self::Host(work) => FlatArray::Host(work.wait()?),
            Self::Device(started) => FlatArray::Device(started.wait()?),
        })
    }
}
