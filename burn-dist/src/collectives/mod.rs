//! Collectives on tensors.
//!
//! The plain ones ([`all_reduce`], [`all_gather`], ...) work on every kind of tensor; on tracked
//! float tensors their backward pass is the adjoint of the map from all ranks' inputs to all ranks'
//! outputs. The conjugate pairs ([`copy_to_region`], ...) are the edges of a parallel region. The
//! started ones ([`start_all_reduce`], ...) run beside the caller and have no gradient.
//!
//! All ranks of the group make the same calls in the same order, in backward passes too.

mod plain;
mod region;
mod tensor_work;

pub use plain::{
    all_gather, all_reduce, all_to_all, all_to_all_uneven, broadcast, gather, recv, reduce_scatter,
    scatter, send, send_recv,
};
pub use region::{
    copy_to_region, gather_from_region, gather_to_region, reduce_from_region,
    reduce_scatter_from_region, scatter_to_region,
};
pub use tensor_work::{TensorWork, start_all_gather, start_all_reduce, start_reduce_scatter};
