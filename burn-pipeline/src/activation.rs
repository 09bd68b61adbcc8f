//! [`Activation`]: a tensor of any rank and kind that passes between stages.

use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};
use burn_dist::communicator::HostBuffer;
use burn_dist::{DistError, Result};

/// A tensor between two stages: floats, whose gradient comes back, integers or booleans.
#[derive(Debug, Clone)]
pub struct Activation {
    values: Values,
    shape: Vec<usize>,
}

#[derive(Debug, Clone)]
enum Values {
    Float(Tensor<1>),
    Int(Tensor<1, Int>),
    Bool(Tensor<1, Bool>),
}

impl<const D: usize> From<Tensor<D>> for Activation {
    fn from(tensor: Tensor<D>) -> Self {
        let shape = tensor.dims().to_vec();
        let len: usize = shape.iter().product();
        Self {
            values: Values::Float(tensor.reshape([len])),
            shape,
        }
    }
}

impl<const D: usize> From<Tensor<D, Int>> for Activation {
    fn from(tensor: Tensor<D, Int>) -> Self {
        let shape = tensor.dims().to_vec();
        let len: usize = shape.iter().product();
        Self {
            values: Values::Int(tensor.reshape([len])),
            shape,
        }
    }
}

impl<const D: usize> From<Tensor<D, Bool>> for Activation {
    fn from(tensor: Tensor<D, Bool>) -> Self {
        let shape = tensor.dims().to_vec();
        let len: usize = shape.iter().product();
        Self {
            values: Values::Bool(tensor.reshape([len])),
            shape,
        }
    }
}

impl Activation {
    /// Shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The float tensor that it is.
    ///
    /// # Errors
    /// [`DistError::Config`] if it is of another kind or rank.
    pub fn float<const D: usize>(self) -> Result<Tensor<D>> {
        match self.values {
            Values::Float(values) => Ok(values.reshape(dims(&self.shape)?)),
            _ => Err(self.other("float")),
        }
    }

    /// The integer tensor that it is.
    ///
    /// # Errors
    /// As [`float`](Self::float).
    pub fn int<const D: usize>(self) -> Result<Tensor<D, Int>> {
        match self.values {
            Values::Int(values) => Ok(values.reshape(dims(&self.shape)?)),
            _ => Err(self.other("integer")),
        }
    }

    /// The boolean tensor that it is.
    ///
    /// # Errors
    /// As [`float`](Self::float).
    pub fn bool<const D: usize>(self) -> Result<Tensor<D, Bool>> {
        match self.values {
            Values::Bool(values) => Ok(values.reshape(dims(&self.shape)?)),
            _ => Err(self.other("boolean")),
        }
    }

    fn other(&self, wanted: &str) -> DistError {
        DistError::config(
            format!("a {wanted} activation was expected, this one is {self:?}"),
            "a stage takes what the stage before it gives, in the same order",
        )
    }

    /// Its values, flat, if they are floats.
    pub(crate) fn as_float(&self) -> Option<&Tensor<1>> {
        match &self.values {
            Values::Float(values) => Some(values),
            _ => None,
        }
    }

    /// Without a graph; floats as leaves of a new one.
    pub(crate) fn as_leaf(&self) -> Self {
        let mut leaf = self.clone();
        if let Values::Float(values) = leaf.values {
            leaf.values = Values::Float(values.detach().require_grad());
        }
        leaf
    }

    /// Without a graph.
    pub(crate) fn detached(&self) -> Self {
        let mut detached = self.clone();
        if let Values::Float(values) = detached.values {
            detached.values = Values::Float(values.detach());
        }
        detached
    }

    /// Its bytes; what nobody else holds is not copied on Flex.
    pub(crate) fn into_buffer(self) -> HostBuffer {
        let data = match self.values {
            Values::Float(values) => values.inner().into_data(),
            Values::Int(values) => values.into_data(),
            Values::Bool(values) => values.into_data(),
        };
        HostBuffer::from(data).reshaped(self.shape)
    }

    pub(crate) fn from_buffer(buffer: HostBuffer, device: &Device) -> Self {
        let (shape, dtype) = (buffer.shape().to_vec(), buffer.dtype());
        let len = buffer.num_elements();
        let data = TensorData::from(buffer.reshaped(vec![len]));
        let values = match dtype {
            dtype if dtype.is_float() => Values::Float(Tensor::from_data(data, (device, dtype))),
            DType::Bool(_) => Values::Bool(Tensor::from_data(data, (device, dtype))),
            dtype => Values::Int(Tensor::from_data(data, (device, dtype))),
        };
        Self { values, shape }
    }
}

fn dims<const D: usize>(shape: &[usize]) -> Result<[usize; D]> {
    shape.try_into().map_err(|_| {
        DistError::config(
            format!("an activation of shape {shape:?} is taken for one of {D} dims"),
            "a stage takes what the stage before it gives, in the same order",
        )
    })
}
