//! [`UnitMemory`]: the values of a unit of parameters, end to end.

use std::any::Any;
use std::sync::Mutex;

use burn::backend::{
    Backend,
    tensor::{Device, FloatTensor},
};

use crate::communicator::HostBuffer;

/// A flat array that tensors look into. It comes from host memory and moves to the device when it is
/// first used; where tensors can be views, nothing is copied.
#[derive(Debug)]
pub struct UnitMemory {
    content: Mutex<Content>,
}

enum Content {
    Host(Option<HostBuffer>),
    Device(Box<dyn Any + Send>),
}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Host(_) => "Host",
            Self::Device(_) => "Device",
        })
    }
}

impl UnitMemory {
    /// Takes a one-dimensional array.
    pub fn new(values: HostBuffer) -> Self {
        Self {
            content: Mutex::new(Content::Host(Some(values))),
        }
    }

    /// The array as a tensor of the backend that used it first.
    pub(super) fn tensor<B: Backend>(&self, device: &Device<B>) -> FloatTensor<B> {
        let mut content = self
            .content
            .lock()
            .expect("invariant: no panic under this lock");
        if let Content::Host(values) = &mut *content {
            let values = values.take().expect("invariant: taken once");
            *content = Content::Device(Box::new(B::float_from_data(values.into(), device)));
        }
        let Content::Device(tensor) = &*content else {
            unreachable!("invariant: it was moved above")
        };
        tensor
            .downcast_ref::<FloatTensor<B>>()
            .expect("invariant: a unit is used on one backend")
            .clone()
    }
}
