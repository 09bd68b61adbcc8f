//! Parameters cut out of whole ones, and put together again.

use burn::module::{Param, ParamId};
use burn::tensor::{Tensor, TensorData};

use super::TensorParallel;
use crate::collectives::all_gather;
use crate::error::Result;

/// A parameter with these values, under the identifier of the one that it comes from, trained if that is.
pub(super) fn parameter<const D: usize, const S: usize>(
    values: Tensor<D>,
    like: &Param<Tensor<S>>,
) -> Param<Tensor<D>> {
    // A view would keep the whole parameter.
    let device = like.base().device();
    let dtype = values.dtype();
    let data: TensorData = values.into_data();
    let own = Tensor::from_data(data, (&device, dtype));
    let own = match like.is_require_grad() {
        true => own.require_grad(),
        false => own,
    };
    Param::initialized(like.id, own)
}

/// The same parameter under another identifier.
pub(super) fn renamed<const D: usize>(
    parameter: Param<Tensor<D>>,
    id: ParamId,
) -> Param<Tensor<D>> {
    let (_, value, mapper) = parameter.consume();
    Param::from_mapped_value(id, value, mapper)
}

/// The values of a parameter, without a graph.
pub(super) fn values<const D: usize>(parameter: &Param<Tensor<D>>) -> Tensor<D> {
    parameter.val().inner()
}

/// Zeros after the end of `dim`, up to `len`.
pub(super) fn padded<const D: usize>(tensor: Tensor<D>, dim: usize, len: usize) -> Tensor<D> {
    let mut shape = tensor.dims();
    if shape[dim] == len {
        return tensor;
    }
    shape[dim] = len - shape[dim];
    let zeros = Tensor::zeros(shape, (&tensor.device(), tensor.dtype()));
    Tensor::cat(vec![tensor, zeros], dim)
}

/// Part `index` of `parts` equal parts along `dim`.
pub(super) fn part<const D: usize>(
    whole: Tensor<D>,
    dim: usize,
    index: usize,
    parts: usize,
) -> Tensor<D> {
    let len = whole.dims()[dim] / parts;
    whole.narrow(dim, index * len, len)
}

/// All parts along `dim`, in group order. Collective: an all_gather.
pub(super) fn joined<const D: usize>(
    own: Tensor<D>,
    dim: usize,
    parallel: &TensorParallel,
) -> Result<Tensor<D>> {
    match parallel.group().size() {
        1 => Ok(own),
        _ => all_gather(own, dim, parallel.group()),
    }
}
