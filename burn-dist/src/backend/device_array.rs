//! [`DeviceArray`]: a tensor of any backend and shape, without a graph.

use burn::backend::{
    Backend, BackendTensor, Dispatch, DispatchKindConversion, DispatchTensor, TensorMetadata,
    ops::FloatTensorOps, tensor::FloatTensor, try_read_sync,
};
use burn::tensor::{DType, Shape, Tensor};

use crate::communicator::HostBuffer;
use crate::error::{DistError, Result};

/// A float tensor of any backend and shape, without a graph: how gradients are handed on.
#[derive(Debug, Clone)]
pub struct DeviceArray(DispatchTensor);

impl DeviceArray {
    /// From a backend's own tensor.
    pub(super) fn of<B: Backend>(tensor: FloatTensor<B>) -> Self
    where
        DispatchTensor: DispatchKindConversion<B>,
    {
        let tensor = BackendTensor::<B>::Float(tensor);
        Self(DispatchTensor::from_backend(tensor))
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.0.dtype()
    }

    /// Number of elements.
    pub fn num_elements(&self) -> usize {
        self.0.shape().num_elements()
    }

    /// Reads it into host memory. On Flex a uniquely held tensor is not copied.
    ///
    /// # Errors
    /// [`DistError::Config`] if the device cannot be read.
    pub fn read(self) -> Result<HostBuffer> {
        let read = try_read_sync(Dispatch::float_into_data(self.0))
            .expect("invariant: native targets can block on a read");
        read.map(HostBuffer::from).map_err(|error| {
            DistError::config(
                format!("a tensor could not be read from its device: {error}"),
                "look at the device's own error above",
            )
        })
    }

    /// `[..] -> [n]`: where it is.
    pub fn flat(self) -> Tensor<1> {
        let shape = Shape::new([self.num_elements()]);
        Tensor::from_dispatch(Dispatch::float_reshape(self.0, shape))
    }
}

impl<const D: usize> From<Tensor<D>> for DeviceArray {
    fn from(tensor: Tensor<D>) -> Self {
        Self(tensor.without_autodiff().into_dispatch())
    }
}
