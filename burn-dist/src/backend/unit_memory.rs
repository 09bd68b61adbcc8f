//! [`UnitMemory`]: the values of a unit of parameters, end to end.

use std::any::Any;
use std::sync::{Arc, Mutex};

use burn::backend::{
    Backend, Dispatch,
    tensor::{Device, FloatTensor},
};

use super::{DistributedBackend, FlatArray};
use crate::communicator::HostBuffer;

/// A flat array that tensors look into. What comes from host memory moves to the device when it is first used; where
/// tensors can be views, nothing is copied.
#[derive(Debug)]
pub struct UnitMemory {
    content: Mutex<Content>,
}

enum Content {
    Host(Option<HostBuffer>),
    Device(Own),
}

/// A tensor of one backend, its own kind.
type Own = Box<dyn Any + Send>;

/// Where an operation on a tensor of any backend leaves the backend's own.
#[derive(Clone, Default)]
pub struct OwnSlot(Arc<Mutex<Option<Own>>>);

impl OwnSlot {
    pub(super) fn put<B: Backend>(&self, tensor: FloatTensor<B>) {
        *self.0.lock().expect("invariant: no panic under this lock") = Some(Box::new(tensor));
    }
}

impl std::fmt::Debug for OwnSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OwnSlot")
    }
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
    /// Takes an array.
    pub fn new(values: FlatArray) -> Self {
        let content = match values {
            FlatArray::Host(values) => Content::Host(Some(values)),
            FlatArray::Device(values) => {
                let slot = OwnSlot::default();
                drop(Dispatch::dist_own(values.into_dispatch(), slot.clone()));
                let mut own = slot.0.lock().expect("invariant: no panic under this lock");
                Content::Device(own.take().expect("invariant: every backend leaves its own"))
            }
        };
        Self {
            content: Mutex::new(content),
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
