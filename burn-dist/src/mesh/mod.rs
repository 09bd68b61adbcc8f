//! Which ranks work together: axes, degrees, groups. Pure arithmetic.

mod axis;
mod axis_order;
mod device_mesh;
mod parallel_dims;

pub use axis::MeshAxis;
pub use axis_order::AxisOrder;
pub use device_mesh::DeviceMesh;
pub use parallel_dims::ParallelDims;
