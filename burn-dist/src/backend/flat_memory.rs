//! [`FlatMemory`]: where arrays of a group's collectives lie.

use std::ops::Range;

use burn::tensor::{DType, Device, Tensor};

use super::{DeviceArray, FlatArray};
use crate::communicator::{HostBuffer, MemoryPool};
use crate::error::Result;
use crate::group::ProcessGroup;

/// Where flat arrays lie that travel in a group.
#[derive(Debug, Clone)]
pub enum FlatMemory {
    /// In host memory, which comes from the group's pool.
    Host(MemoryPool),
    /// In the memory of this device.
    Device(Device),
}

impl FlatMemory {
    /// The device's memory where the group's communicator [reaches it](crate::communicator::Communicator::device),
    /// else host memory; with Burn's fusion always host memory.
    pub fn of(group: &ProcessGroup, device: &Device) -> Self {
        let communicator = group.communicator();
        let device = device.clone().inner();
        let reached = communicator.device();
        match reached.is_some_and(|reached| reached.array_device() == device) {
            true if !cfg!(feature = "fusion") => Self::Device(device),
            _ => Self::Host(communicator.pool().clone()),
        }
    }

    /// `[len]`, of any content.
    pub fn array(&self, dtype: DType, len: usize) -> FlatArray {
        match self {
            Self::Host(pool) => FlatArray::Host(HostBuffer::recycled(pool, dtype, &[len])),
            Self::Device(device) => FlatArray::Device(Tensor::empty([len], (device, dtype))),
        }
    }

    /// `[..] -> [n]`: a tensor's elements in this memory.
    ///
    /// # Errors
    /// [`DistError::Config`](crate::DistError::Config) if the tensor has to be read and cannot.
    pub fn take(&self, values: DeviceArray) -> Result<FlatArray> {
        let len = values.num_elements();
        Ok(match self {
            Self::Host(_) => FlatArray::Host(values.read()?.reshaped(vec![len])),
            Self::Device(device) => FlatArray::Device(values.flat().to_device(device)),
        })
    }

    /// `[len]`: pieces at their places, in ascending order and without gaps, rounded to `dtype`, then padding that
    /// nobody is to read.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn join(
        &self,
        dtype: DType,
        len: usize,
        pieces: impl IntoIterator<Item = (Range<usize>, Tensor<1>)>,
    ) -> Result<FlatArray> {
        let mut array = self.array(dtype, len);
        let mut end = 0;
        for (place, values) in pieces {
            end = place.end;
            let values = match self {
                // The device's kernel rounds while it copies.
                Self::Device(device) if values.device() == *device => values,
                // What moves is rounded before.
                _ => values.cast(dtype),
            };
            array.put(place.start, self.take(values.into())?, true);
        }
        if let FlatArray::Host(buffer) = &mut array {
            buffer.bytes_mut()[end * dtype.size()..].fill(0);
        }
        Ok(array)
    }
}
