//! Sums on flat tensors, as a rank makes them before and after a collective: what `HostBuffer` does in host memory.

use std::ops::Range;

use burn::tensor::{DType, Tensor};

use super::{KernelChoice, pack};

/// Writes (`first`) or adds the elements of `values` from element `start` on, in the array's own type.
pub(super) fn put(array: Tensor<1>, start: usize, values: Tensor<1>, first: bool) -> Tensor<1> {
    let [len] = values.dims();
    if len == 0 {
        return array;
    }
    if first {
        return pack(array, values, start, 1.0, KernelChoice::Fused);
    }
    let values = cast(values, array.dtype());
    if array.dims() == [len] {
        return array + values;
    }
    // The view is gone before its array is written to.
    let sum = array.clone().slice([start..start + len]) + values;
    pack(array, sum, start, 1.0, KernelChoice::Fused)
}

/// Fills elements with -0.0, which changes no sum.
pub(super) fn fill_neutral(array: Tensor<1>, elements: Range<usize>) -> Tensor<1> {
    let device = (&array.device(), array.dtype());
    let neutral = Tensor::full([elements.len()], -0.0, device);
    put(array, elements.start, neutral, true)
}

pub(super) fn cast(array: Tensor<1>, dtype: DType) -> Tensor<1> {
    match array.dtype() == dtype {
        true => array,
        false => array.cast(dtype),
    }
}
