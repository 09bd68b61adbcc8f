//! Flex's tensors as arrays for kernels.

use burn::backend::{Element, flex::FlexTensor, flex::Layout};
use burn::tensor::{Bytes, DType};

use crate::kernels::{KernelFloat, new_array};

/// What Flex stores and kernels compute on.
pub(super) trait Stored: KernelFloat + Element + bytemuck::Pod {}

impl<E: KernelFloat + Element + bytemuck::Pod> Stored for E {}

/// A tensor of memory that nobody else holds, without gaps.
pub(super) fn owned<E: Stored>(tensor: FlexTensor) -> FlexTensor {
    let tensor = without_gaps(tensor);
    let is_whole = tensor.storage::<E>().len() == tensor.layout().num_elements();
    match is_whole && tensor.is_unique() {
        true => tensor,
        false => from_values(values::<E>(&tensor).to_vec(), &tensor),
    }
}

/// Of a view with gaps a copy without; what has none stays as it is.
pub(super) fn without_gaps(tensor: FlexTensor) -> FlexTensor {
    match tensor.is_contiguous() {
        true => tensor,
        false => tensor.to_contiguous(),
    }
}

/// The elements of a tensor without gaps.
pub(super) fn values<E: Stored>(tensor: &FlexTensor) -> &[E] {
    tensor.as_slice().expect("invariant: it has no gaps")
}

pub(super) fn from_values<E: Stored>(values: Vec<E>, like: &FlexTensor) -> FlexTensor {
    let layout = Layout::contiguous(like.layout().shape().clone());
    FlexTensor::new(Bytes::from_elems(values), layout, like.dtype())
}

/// An array for a kernel to fill.
pub(super) fn blank<E: Stored>(len: usize, dtype: DType) -> FlexTensor {
    let mut values = new_array(len);
    values.resize(len, E::zeroed());
    FlexTensor::new(
        Bytes::from_elems(values),
        Layout::contiguous([len].into()),
        dtype,
    )
}
