//! [`new_array`]: memory for a result.
#![allow(unsafe_code)]

/// From this size on the system is asked for large pages. Neighbours share one.
const LARGE: usize = 1 << 20;
/// What a range of pages begins and ends at: the largest size of ordinary pages.
const PAGE: usize = 1 << 16;

/// An empty array with room for `len` elements, as [`in_large_pages`] if it is large.
pub fn new_array<E>(len: usize) -> Vec<E> {
    let mut array = Vec::with_capacity(len);
    in_large_pages(array.spare_capacity_mut());
    array
}

/// Asks for large pages where memory is large and the system has them on request: the first write to a page costs a
/// fault, and with pages of 4 KB faults are most of the time of a pass over new memory.
pub fn in_large_pages<E>(memory: &mut [E]) {
    let bytes = size_of_val(memory);
    if bytes < LARGE {
        return;
    }
    let start = memory.as_mut_ptr().cast::<u8>();
    let skipped = start.align_offset(PAGE);
    let whole = (bytes - skipped) / PAGE * PAGE;
    // SAFETY: the range is inside memory that the caller holds, and the advice changes no content. A system without
    // large pages says no, which harms nobody.
    let _ = unsafe {
        let start = start.add(skipped).cast();
        rustix::mm::madvise(start, whole, rustix::mm::Advice::LinuxHugepage)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_of_any_size_hold_what_is_put_in() {
        let large = LARGE / size_of::<u64>();
        for len in [0, 1, large - 1, large, large + 1, 3 * large + 5] {
            let mut array = new_array::<u64>(len);
            assert!(array.is_empty() && array.capacity() >= len);
            let place = array.as_ptr();
            array.extend(0..len as u64);
            assert_eq!(array.as_ptr(), place, "room for all of it");
            in_large_pages(&mut array);
            assert!(array.iter().copied().eq(0..len as u64));
        }
    }
}
