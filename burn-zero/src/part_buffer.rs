//! A rank's part of a unit, as it travels.

use std::ops::Range;

use burn::tensor::{DType, Tensor};
use burn_dist::communicator::{HostBuffer, MemoryPool};

/// `len` elements: pieces at their places, in ascending order and without gaps, then padding, which nobody
/// reads.
pub(crate) fn part_buffer(
    pool: &MemoryPool,
    dtype: DType,
    len: usize,
    pieces: impl IntoIterator<Item = (Range<usize>, Tensor<1>)>,
) -> HostBuffer {
    let mut part = HostBuffer::recycled(pool, dtype, &[len]);
    let size = dtype.size();
    let mut end = 0;
    for (place, values) in pieces {
        let data = values.cast(dtype).into_data();
        end = place.end * size;
        part.bytes_mut()[place.start * size..end].copy_from_slice(data.as_bytes());
    }
    part.bytes_mut()[end..].fill(0);
    part
}
