//! How kernels are spread over a device, and where their results go.

use burn::tensor::{DType, Shape};
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::features::Plane;
use cubecl::prelude::*;

/// Whether kernels store this type; all of them compute in 32 bits.
pub(super) fn is_small_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Elements that one unit takes: as many as 16 bytes of the widest type hold and all lengths and offsets allow. On a
/// CPU 64 bytes, a cache's line: units that follow each other are threads.
pub(super) fn vector_size(client: &Client, multiples: &[usize], dtypes: &[DType]) -> usize {
    let widest = dtypes.iter().map(DType::size).max().unwrap_or(1);
    let bytes = match client.properties().hardware.num_cpu_cores {
        Some(_) => 64,
        None => 16,
    };
    [32, 16, 8, 4, 2]
        .into_iter()
        .filter(|n| n * widest <= bytes)
        .find(|n| multiples.iter().all(|multiple| multiple.is_multiple_of(*n)))
        .unwrap_or(1)
}

/// Units for `number` vectors, one each.
pub(super) fn units(client: &Client, number: usize) -> (CubeCount, CubeDim) {
    let cube_dim = CubeDim::new(client, number);
    let cube_count = calculate_cube_count_elemwise(client, number, cube_dim);
    (cube_count, cube_dim)
}

/// Planes of `lanes` units: along x the units of a plane, along y planes.
pub(super) struct Planes {
    pub(super) lanes: u32,
    pub(super) count: CubeCount,
    pub(super) dim: CubeDim,
}

/// Planes for `number` pieces of work, one each. A device whose planes have no one size gets planes of one unit.
pub(super) fn planes(client: &Client, number: usize) -> Planes {
    const MOST: usize = 8;
    let properties = client.properties();
    let hardware = &properties.hardware;
    let has_size = hardware.plane_size_min == hardware.plane_size_max
        && properties.features.plane.contains(Plane::Ops);
    let lanes = match has_size {
        true => hardware.plane_size_max,
        false => 1,
    };
    let dim = match lanes {
        1 => CubeDim::new(client, number),
        lanes => CubeDim::new_2d(lanes, number.clamp(1, MOST) as u32),
    };
    let count = calculate_cube_count_elemwise(client, number * lanes as usize, dim);
    Planes { lanes, count, dim }
}

/// What places in these tensors are counted in.
pub(super) fn address(tensors: &[&CubeTensor]) -> AddressType {
    let types = tensors.iter().map(|tensor| tensor.required_address_type());
    types.max().unwrap_or_default()
}

/// New memory on the same device.
pub(super) fn new_beside(tensor: &CubeTensor, shape: Shape, dtype: DType) -> CubeTensor {
    let (client, device) = (tensor.client.clone(), tensor.device.clone());
    empty_device_contiguous_dtype(client, device, shape, dtype)
}

/// Where a result goes: into its input's memory, if nobody else holds that, or into new memory.
pub(super) fn output(input: &CubeTensor, position: usize) -> (CubeTensor, TensorArg) {
    if input.can_mut() {
        return (input.clone(), input.as_tensor_alias(position));
    }
    let new = new_beside(input, input.meta.shape().clone(), input.dtype);
    (new.clone(), new.into_tensor_arg())
}
