//! [`HostBuffer`]: what a communicator moves.

use burn::tensor::{Bytes, DType, TensorData};
use smallvec::SmallVec;

use super::MemoryPool;

/// A contiguous array in host memory: bytes, element type and row-major shape.
#[derive(Debug, Clone)]
pub struct HostBuffer {
    bytes: Bytes,
    dtype: DType,
    /// Of few dims: kept without allocating.
    shape: SmallVec<[usize; 6]>,
}

impl HostBuffer {
    /// Wraps bytes that hold a row-major array.
    ///
    /// # Panics
    /// If the number of bytes is not the number of elements times the element size.
    pub fn new(bytes: Bytes, dtype: DType, shape: Vec<usize>) -> Self {
        let expected = shape.iter().product::<usize>() * dtype.size();
        assert_eq!(
            bytes.len(),
            expected,
            "invariant: {shape:?} of {dtype:?} takes {expected} bytes"
        );
        Self {
            bytes,
            dtype,
            shape: shape.into(),
        }
    }

    /// An array of zeros, aligned for every element type.
    pub fn zeros(dtype: DType, shape: Vec<usize>) -> Self {
        let num_bytes = shape.iter().product::<usize>() * dtype.size();
        let mut bytes = Bytes::from_elems(vec![0u64; num_bytes.div_ceil(8)]);
        if bytes.len() != num_bytes {
            bytes = Bytes::from_bytes_vec(vec![0u8; num_bytes]);
        }
        Self {
            bytes,
            dtype,
            shape: shape.into(),
        }
    }

    /// An array of any content, in memory that a pool lends.
    pub fn recycled(pool: &MemoryPool, dtype: DType, shape: &[usize]) -> Self {
        let len = shape.iter().product::<usize>() * dtype.size();
        Self {
            bytes: pool.take(len),
            dtype,
            shape: shape.into(),
        }
    }

    /// A one-dimensional array from values.
    pub fn from_values<E: burn::tensor::Element + bytemuck::Pod>(values: Vec<E>) -> Self {
        let shape = SmallVec::from_slice(&[values.len()]);
        Self {
            bytes: Bytes::from_elems(values),
            dtype: E::dtype(),
            shape,
        }
    }

    /// The bytes, row-major.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes, row-major, to be changed in place.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The row-major shape; an empty list is a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The same bytes under another shape of as many elements.
    ///
    /// # Panics
    /// If the number of elements differs.
    pub fn reshaped(mut self, shape: Vec<usize>) -> Self {
        assert_eq!(
            shape.iter().product::<usize>(),
            self.num_elements(),
            "invariant: a reshape keeps the number of elements"
        );
        self.shape = shape.into();
        self
    }

    /// The values, copied out.
    ///
    /// # Panics
    /// If `E` is not the buffer's element type.
    pub fn to_values<E: burn::tensor::Element + bytemuck::Pod>(&self) -> Vec<E> {
        assert_eq!(E::dtype(), self.dtype, "invariant: element type");
        bytemuck::pod_collect_to_vec(&self.bytes)
    }

    /// Takes the parts: bytes, element type, shape.
    pub fn into_parts(self) -> (Bytes, DType, Vec<usize>) {
        (self.bytes, self.dtype, self.shape.into_vec())
    }
}

impl From<TensorData> for HostBuffer {
    fn from(data: TensorData) -> Self {
        let (bytes, shape, dtype) = data.into_parts();
        Self::new(bytes, dtype, shape.to_vec())
    }
}

impl From<HostBuffer> for TensorData {
    fn from(buffer: HostBuffer) -> Self {
        TensorData::from_bytes(buffer.bytes, buffer.shape.into_vec(), buffer.dtype)
    }
}
