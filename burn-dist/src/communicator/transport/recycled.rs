//! [`MemoryPool`]: memory of arrays that is used again.
//!
//! Fresh memory of tens of megabytes costs a page fault for every 4 KiB, more than moving the bytes
//! does. Arrays that a communicator gives out return to its pool when they are dropped, wherever
//! that is: inside a tensor, too.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, MutexGuard};

use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty, Bytes};

use crate::kernels::in_large_pages;

/// Memory for arrays. It keeps what was in use at once at its peak, and no more; an array
/// may lie in memory of up to 5/4 of its size. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct MemoryPool(Arc<Mutex<Shelf>>);

#[derive(Debug, Default)]
struct Shelf {
    /// Memory that nobody uses, the longest unused first.
    idle: Vec<Vec<u64>>,
    idle_words: usize,
    used_words: usize,
    peak_words: usize,
    /// The peak that users ask for; what is kept depends on the other one.
    marked_words: usize,
}

impl MemoryPool {
    /// An empty pool.
    pub fn new() -> Self {
        Self::default()
    }

    /// `len` bytes of any content, aligned for every element type.
    pub fn take(&self, len: usize) -> Bytes {
        let words = len.div_ceil(8);
        let memory = self.lock().take(words);
        let mut memory = memory.unwrap_or_else(|| fresh(words));
        if cfg!(debug_assertions) {
            // NaN as a float of any width: who reads what nobody wrote is found out.
            memory.fill(u64::MAX);
        }
        let controller = Recycled {
            memory,
            pool: self.clone(),
        };
        // SAFETY: the memory has at least `len` bytes, all initialised.
        unsafe { Bytes::from_controller(Box::new(controller), len) }
    }

    /// Bytes that the pool has given out or keeps.
    pub fn held_bytes(&self) -> usize {
        let shelf = self.lock();
        8 * (shelf.idle_words + shelf.used_words)
    }

    /// Bytes that the pool has given out and that are still in use, wherever they are.
    pub fn used_bytes(&self) -> usize {
        8 * self.lock().used_words
    }

    /// The most bytes in use at once since the last [`mark_peak`](Self::mark_peak).
    pub fn peak_bytes(&self) -> usize {
        8 * self.lock().marked_words
    }

    /// Starts a new peak from what is in use now.
    pub fn mark_peak(&self) {
        let mut shelf = self.lock();
        shelf.marked_words = shelf.used_words;
    }

    fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.0.lock().expect("invariant: no panic under this lock")
    }
}

/// New memory, in large pages where the system has them.
fn fresh(words: usize) -> Vec<u64> {
    let mut memory = vec![0; words];
    in_large_pages(&mut memory);
    memory
}

impl Shelf {
    /// The smallest idle memory that fits without waste; counts what is now in use.
    fn take(&mut self, words: usize) -> Option<Vec<u64>> {
        let fits = |memory: &Vec<u64>| (words..=words + words / 4).contains(&memory.len());
        let found = (0..self.idle.len())
            .filter(|&i| fits(&self.idle[i]))
            .min_by_key(|&i| self.idle[i].len())
            .map(|i| self.idle.remove(i));
        let len = found.as_ref().map_or(words, Vec::len);
        if found.is_some() {
            self.idle_words -= len;
        }
        self.used_words += len;
        self.peak_words = self.peak_words.max(self.used_words);
        self.marked_words = self.marked_words.max(self.used_words);
        self.trim();
        found
    }

    fn give_back(&mut self, memory: Vec<u64>) {
        self.used_words -= memory.len();
        self.idle_words += memory.len();
        self.idle.push(memory);
        self.trim();
    }

    fn trim(&mut self) {
        while self.idle_words + self.used_words > self.peak_words {
            self.idle_words -= self.idle.remove(0).len();
        }
    }
}

/// Memory that returns to its pool.
struct Recycled {
    memory: Vec<u64>,
    pool: MemoryPool,
}

impl Drop for Recycled {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        self.pool.lock().give_back(memory);
    }
}

impl AllocationController for Recycled {
    fn alloc_align(&self) -> usize {
        align_of::<u64>()
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    unsafe fn memory_mut(
        &mut self,
        _: AccessPolicy,
    ) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        let len = 8 * self.memory.len();
        let start = self.memory.as_mut_ptr().cast();
        // SAFETY: the words are this controller's own and borrowed for as long as the result; their
        // bytes may be written as any bytes.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, len) })
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        let len = 8 * self.memory.len();
        let start = self.memory.as_ptr().cast();
        // SAFETY: as above, for reading.
        Ok(unsafe { std::slice::from_raw_parts(start, len) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_and_is_used_again() {
        let pool = MemoryPool::new();
        let first = pool.take(1000);
        let place = first.as_ptr();
        drop(first);
        assert_eq!(pool.take(996).as_ptr(), place);
        let (a, b) = (pool.take(1000), pool.take(1000));
        assert_eq!((pool.held_bytes(), pool.used_bytes()), (2000, 2000));
        drop(a);
        assert_eq!((pool.used_bytes(), pool.peak_bytes()), (1000, 2000));
        pool.mark_peak();
        assert_eq!(pool.peak_bytes(), 1000);
        drop(b);
        assert_eq!((pool.held_bytes(), pool.used_bytes()), (2000, 0));
    }

    #[test]
    fn the_pool_keeps_no_more_than_was_in_use_at_once() {
        let pool = MemoryPool::new();
        for len in [8000, 80, 16_000, 8000, 400] {
            drop(pool.take(len));
            assert!(pool.held_bytes() <= 16_000);
        }
        let mut array = pool.take(0);
        assert!(array.is_empty() && array.iter_mut().next().is_none());
        let mut array = pool.take(3);
        array.copy_from_slice(&[1, 2, 3]);
        assert_eq!(array[..], [1, 2, 3]);
    }
}
