//! [`FlatArray`]: a one-dimensional array that travels, in host or in device memory.

use std::ops::Range;

use burn::backend::{
    Backend, DispatchKindConversion, DispatchTensor,
    tensor::{Device as BackendDevice, FloatTensor},
};
use burn::tensor::{DType, Device, Tensor, TensorData};

use super::{FlatWork, KernelChoice, StartedArray, device_sums, unpack};
use crate::communicator::{HostBuffer, Operation};
use crate::group::ProcessGroup;

/// A one-dimensional array of floats that values are collected in, that travels, and that values are taken out of.
/// [`FlatMemory`](super::FlatMemory) says where, and makes it; arrays that meet are of one memory.
// There are as many as buckets, and a tensor is moved without a box everywhere else.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
pub enum FlatArray {
    /// In host memory.
    Host(HostBuffer),
    /// In the memory of a tensor's device.
    Device(Tensor<1>),
}

impl FlatArray {
    /// The element type.
    pub fn dtype(&self) -> DType {
        match self {
            Self::Host(buffer) => buffer.dtype(),
            Self::Device(tensor) => tensor.dtype(),
        }
    }

    /// Number of elements.
    pub fn num_elements(&self) -> usize {
        match self {
            Self::Host(buffer) => buffer.num_elements(),
            Self::Device(tensor) => tensor.dims()[0],
        }
    }

    /// Writes (`first`) or adds the elements of `values` from element `start` on, as [`HostBuffer::put`].
    ///
    /// # Panics
    /// If the values do not fit, or are in another kind of memory.
    pub fn put(&mut self, start: usize, values: Self, first: bool) {
        match (self, values) {
            (Self::Host(buffer), Self::Host(values)) => buffer.put(start, &values, first),
            (Self::Device(tensor), Self::Device(values)) => {
                change(tensor, |tensor| {
                    device_sums::put(tensor, start, values, first)
                });
            }
            _ => unreachable!("invariant: arrays that meet are of one memory"),
        }
    }

    /// Fills elements with -0.0, which changes no sum.
    pub fn fill_neutral(&mut self, elements: Range<usize>) {
        if elements.is_empty() {
            return;
        }
        match self {
            Self::Host(buffer) => buffer.fill_neutral(elements),
            Self::Device(tensor) => {
                change(tensor, |tensor| device_sums::fill_neutral(tensor, elements));
            }
        }
    }

    /// Whether all elements may be -0.0, which is what stands where no rank gave a value. In device memory nobody
    /// looks: reading would make this thread wait for the device.
    pub fn may_be_neutral(&self, elements: Range<usize>) -> bool {
        match self {
            Self::Host(buffer) => buffer.is_neutral(elements),
            Self::Device(_) => true,
        }
    }

    /// Divides every element once: an f32 or f64 array.
    pub fn divide(&mut self, divisor: usize) {
        match self {
            Self::Host(buffer) => buffer.divide(divisor),
            Self::Device(tensor) => change(tensor, |tensor| tensor.div_scalar(divisor as f64)),
        }
    }

    /// Some of its elements, in another float type, at the same place.
    pub fn excerpt(&self, elements: Range<usize>, dtype: DType) -> Self {
        match self {
            Self::Host(buffer) => Self::Host(buffer.excerpt(elements, dtype)),
            Self::Device(tensor) => {
                let (start, shape) = (elements.start, [elements.len()]);
                let fused = KernelChoice::Fused;
                Self::Device(unpack(tensor.clone(), start, shape, 1.0, dtype, fused))
            }
        }
    }

    /// Starts `operation` with this array; `label` says what it is for, which members compare.
    #[track_caller]
    pub fn start(
        self,
        operation: Operation,
        group: &ProcessGroup,
        label: Option<&str>,
    ) -> FlatWork {
        match self {
            Self::Host(buffer) => FlatWork::Host(match label {
                Some(label) => group.start_for(label.into(), operation, buffer),
                None => group.start(operation, buffer),
            }),
            Self::Device(tensor) => {
                let started = StartedArray::start(tensor, operation, group, label);
                FlatWork::Device(Box::new(started))
            }
        }
    }

    /// As a tensor on `device`.
    pub fn into_tensor(self, device: &Device) -> Tensor<1> {
        match self {
            Self::Host(buffer) => {
                let dtype = buffer.dtype();
                Tensor::from_data(TensorData::from(buffer), (device, dtype))
            }
            Self::Device(tensor) => tensor.to_device(device),
        }
    }

    /// As a backend's own tensor.
    pub(super) fn into_own<B: Backend>(self, device: &BackendDevice<B>) -> FloatTensor<B>
    where
        DispatchTensor: DispatchKindConversion<B>,
    {
        match self {
            Self::Host(buffer) => B::float_from_data(buffer.into(), device),
            Self::Device(tensor) => DispatchTensor::try_into_backend(tensor.into_dispatch())
                .expect("invariant: an array is used on the backend that it is on")
                .float(),
        }
    }
}

/// In place where nobody else holds the array.
fn change(tensor: &mut Tensor<1>, f: impl FnOnce(Tensor<1>) -> Tensor<1>) {
    // Nothing, on the same device: what is changed must have one owner.
    let nothing = Tensor::empty([0], (&tensor.device(), tensor.dtype()));
    *tensor = f(std::mem::replace(tensor, nothing));
}
