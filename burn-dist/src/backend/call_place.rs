//! [`CallPlace`]: where a call is made, and on whose behalf.

use std::panic::Location;

use burn::backend::{Backend, tensor::Device};

use crate::group::ProcessGroup;

/// Where a call on a tensor is made, and on whose behalf.
#[derive(Debug)]
pub struct CallPlace<'a, B: Backend> {
    /// The ranks.
    pub group: &'a ProcessGroup,
    /// The tensor's device.
    pub device: &'a Device<B>,
    /// Where in the program, for the flight recorder.
    pub site: &'static Location<'static>,
    /// What the call is for, as in [`Call`](crate::communicator::Call).
    pub label: Option<&'a str>,
}

impl<B: Backend> Clone for CallPlace<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for CallPlace<'_, B> {}
