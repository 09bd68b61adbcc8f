//! [`Segment`]: memory that the processes of a group share.
//!
//! ```text
//! token | a bell per member | a ring per ordered pair
//! ```
//!
//! A bell wakes a sleeping member. A ring carries one byte stream from one member to one other; only
//! that member writes it, only that other reads it. The memory is a file without a name: the system
//! takes it back when the last process that maps it has ended, whatever way it ends.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;

#[cfg(any(test, fuzzing))]
use crate::communicator::PeerConnection;

pub(super) const TOKEN: usize = 16;

/// Where parcels in a ring may start.
const ALIGN: u64 = 64;

/// Distance of words that different members write: two cache lines, as they are fetched in pairs.
const LINE: usize = 128;

/// How a member sleeps: not at all, on its bell, or on its connections.
pub(super) const AWAKE: u32 = 0;
pub(super) const ON_BELL: u32 = 1;
pub(super) const ON_CONNECTIONS: u32 = 2;

#[derive(Debug)]
pub(super) struct Segment {
    base: NonNull<u8>,
    len: usize,
    size: usize,
    capacity: usize,
}

// SAFETY: the segment is shared memory; what several threads or processes touch at once is atomic,
// and the bytes of a ring are handed over by its atomic counters.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

/// Bytes of a segment for `size` members with rings of `capacity` bytes.
fn length(size: usize, capacity: usize) -> usize {
    LINE + size * LINE + size * size * (2 * LINE + capacity)
}

/// A ring's capacity for `size` members: rings of all pairs together stay near 8 MiB.
pub(super) fn ring_capacity(size: usize) -> usize {
    ((8 << 20) / (size * size))
        .next_power_of_two()
        .clamp(16 << 10, 512 << 10)
}

impl Segment {
    /// A new segment, zeroed but for its token, and the file through which others map it.
    pub(super) fn create(size: usize, token: &[u8; TOKEN]) -> std::io::Result<(Self, OwnedFd)> {
        let file = rustix::fs::memfd_create("burn-dist", MemfdFlags::CLOEXEC)?;
        let capacity = ring_capacity(size);
        rustix::fs::ftruncate(&file, length(size, capacity) as u64)?;
        let segment = Self::map(&file, size, capacity)?;
        // SAFETY: the segment is longer than its token, and nobody else maps it yet.
        unsafe { std::ptr::copy_nonoverlapping(token.as_ptr(), segment.base.as_ptr(), TOKEN) };
        Ok((segment, file))
    }

    /// Maps the segment of another process of this host; refuses one with another token or size.
    pub(super) fn open(
        process: u32,
        descriptor: i32,
        size: usize,
        token: &[u8; TOKEN],
    ) -> std::io::Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{process}/fd/{descriptor}"))?;
        let capacity = ring_capacity(size);
        if file.metadata()?.len() != length(size, capacity) as u64 {
            return Err(std::io::Error::other("another file"));
        }
        let segment = Self::map(&file, size, capacity)?;
        // SAFETY: the mapping is longer than its token, and its token never changes.
        let found = unsafe { std::slice::from_raw_parts(segment.base.as_ptr(), TOKEN) };
        match found == token {
            true => Ok(segment),
            false => Err(std::io::Error::other("another segment")),
        }
    }

    fn map(file: &impl AsFd, size: usize, capacity: usize) -> std::io::Result<Self> {
        let len = length(size, capacity);
        // SAFETY: a new mapping at an address of the system's choice, of a file of this length that
        // nobody shortens.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        let base = NonNull::new(base.cast()).expect("invariant: a mapping is not at address 0");
        Ok(Self {
            base,
            len,
            size,
            capacity,
        })
    }

    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.len);
        // SAFETY: all offsets are computed from the layout and lie inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: the word lies inside the mapping, is aligned (offsets are multiples of 4, the
        // mapping of a page), lives as long as it, and is only touched as an atomic.
        unsafe { AtomicU32::from_ptr(self.at(offset).cast()) }
    }

    fn counter(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as in `word`; offsets of counters are multiples of 8.
        unsafe { AtomicU64::from_ptr(self.at(offset).cast()) }
    }

    fn bell(&self, member: usize) -> &AtomicU32 {
        self.word(LINE + member * LINE)
    }

    fn sleeping(&self, member: usize) -> &AtomicU32 {
        self.word(LINE + member * LINE + 4)
    }

    fn given_up(&self, member: usize) -> &AtomicU32 {
        self.word(LINE + member * LINE + 8)
    }

    /// Says that a member's arrays may no longer be where it said, before they go.
    pub(super) fn give_up(&self, member: usize) {
        self.given_up(member).store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Whether a member had given up by now. What was read from it before is good if not.
    pub(super) fn has_given_up(&self, member: usize) -> bool {
        fence(Ordering::SeqCst);
        self.given_up(member).load(Ordering::SeqCst) != 0
    }

    /// Wakes a member that sleeps here, after something was written or taken for it. `true`: it
    /// sleeps on its connections, and only the caller can wake it.
    pub(super) fn ring_bell(&self, member: usize) -> bool {
        // Orders what was written before this look; pairs with the fence in `announce`.
        fence(Ordering::SeqCst);
        match self.sleeping(member).load(Ordering::Relaxed) {
            AWAKE => false,
            ON_BELL => {
                self.bell(member).fetch_add(1, Ordering::Release);
                // Nobody there to be woken is no error.
                let _ = futex::wake(self.bell(member), futex::Flags::empty(), 1);
                false
            }
            // One wake-up is enough.
            _ => self.sleeping(member).swap(AWAKE, Ordering::Relaxed) != AWAKE,
        }
    }

    /// Says that a member is about to sleep, on its bell or on its connections. It then looks once
    /// more whether there is something to do, and takes the word back when it is awake.
    pub(super) fn announce(&self, member: usize, how: u32) {
        self.sleeping(member).store(how, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The state of a member's bell; taken before `announce`.
    pub(super) fn bell_count(&self, member: usize) -> u32 {
        self.bell(member).load(Ordering::Acquire)
    }

    /// Sleeps until the bell rings, or for `longest`, or not at all if it rang since `before`.
    pub(super) fn sleep(&self, member: usize, before: u32, longest: std::time::Duration) {
        let longest = futex::Timespec {
            tv_sec: longest.as_secs() as i64,
            tv_nsec: longest.subsec_nanos().into(),
        };
        // A bell that rang before, an interruption and the end of time are all reasons to look.
        let _ = futex::wait(
            self.bell(member),
            futex::Flags::empty(),
            before,
            Some(&longest),
        );
    }

    /// The layout of one direction between two members.
    pub(super) fn ring(&self, from: usize, to: usize) -> Ring<'_> {
        let rings = LINE + self.size * LINE;
        let start = rings + (from * self.size + to) * (2 * LINE + self.capacity);
        Ring {
            written: self.counter(start),
            taken: self.counter(start + LINE),
            data: self.at(start + 2 * LINE),
            capacity: self.capacity,
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping is this segment's own, and nothing borrowed from it is left.
        // A failure leaves it mapped, which harms nobody.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// One direction between two members: a byte stream. Parcels start at multiples of [`ALIGN`], so that
/// no element of an array lies across the end of the ring; both sides skip to the next multiple by
/// themselves, so either counter may for a moment be ahead of the other by less than that.
pub(super) struct Ring<'a> {
    written: &'a AtomicU64,
    taken: &'a AtomicU64,
    data: *mut u8,
    capacity: usize,
}

impl<'a> Ring<'a> {
    /// Bytes that wait to be taken. Bounded, whatever another process has written there.
    fn filled(&self) -> usize {
        let written = self.written.load(Ordering::Acquire);
        let taken = self.taken.load(Ordering::Acquire);
        written.saturating_sub(taken).min(self.capacity as u64) as usize
    }

    pub(super) fn is_empty(&self) -> bool {
        self.filled() == 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.filled() == self.capacity
    }

    /// Writes what fits and returns how much that was. Only the sending member calls this.
    pub(super) fn write(&self, bytes: &[u8]) -> usize {
        let written = self.written.load(Ordering::Relaxed);
        let count = bytes.len().min(self.capacity - self.filled());
        let start = (written % self.capacity as u64) as usize;
        let first = count.min(self.capacity - start);
        // SAFETY: both pieces lie inside the ring's bytes, and the receiver does not read them
        // before `written` says so.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.data.add(start), first);
            std::ptr::copy_nonoverlapping(bytes[first..].as_ptr(), self.data, count - first);
        }
        self.written
            .store(written.wrapping_add(count as u64), Ordering::Release);
        count
    }

    /// The bytes that lie there in one piece. Only the receiving member calls this.
    pub(super) fn peek(&self) -> &'a [u8] {
        let taken = self.taken.load(Ordering::Relaxed);
        let start = (taken % self.capacity as u64) as usize;
        let count = self.filled().min(self.capacity - start);
        // SAFETY: the piece lies inside the ring's bytes, which are initialised (the file began as
        // zeros), and the sender does not write it before `taken` says so, which it does after
        // the receiver has done with the piece.
        unsafe { std::slice::from_raw_parts(self.data.add(start), count) }
    }

    /// Gives the first `count` of the peeked bytes back to the sender.
    pub(super) fn consume(&self, count: usize) {
        let taken = self.taken.load(Ordering::Relaxed);
        self.taken
            .store(taken.wrapping_add(count as u64), Ordering::Release);
    }

    /// Begins a parcel on the sending side.
    pub(super) fn align_written(&self) {
        align(self.written);
    }

    /// Begins a parcel on the receiving side.
    pub(super) fn align_taken(&self) {
        align(self.taken);
    }
}

/// Skips to the next multiple of [`ALIGN`]. Only one member writes the counter.
fn align(counter: &AtomicU64) {
    let count = counter.load(Ordering::Relaxed);
    // Another process may have left any number there.
    let aligned = count.wrapping_add(ALIGN - 1) & !(ALIGN - 1);
    if aligned != count {
        counter.store(aligned, Ordering::Release);
    }
}

/// The number under which other processes find an open file of this one.
pub(super) fn descriptor(file: &OwnedFd) -> i32 {
    file.as_raw_fd()
}

/// For `fuzzing.rs`, which cannot name this module.
#[cfg(any(test, fuzzing))]
impl PeerConnection {
    /// A ring of which another process may have set the counters, written and taken, to anything: one
    /// parcel is written, another read. How much was written, how much lay there, and the most that
    /// either can be.
    pub(crate) fn fuzz_ring() -> std::io::Result<impl FnMut([u64; 2], &[u8]) -> [usize; 3]> {
        let (segment, _) = Segment::create(2, &[0; TOKEN])?;
        Ok(move |[written, taken]: [u64; 2], bytes: &[u8]| {
            let ring = segment.ring(0, 1);
            ring.written.store(written, Ordering::Relaxed);
            ring.taken.store(taken, Ordering::Relaxed);
            ring.align_written();
            let sent = ring.write(bytes);
            ring.align_taken();
            let there = ring.peek();
            // The ends show whether all of it can be read.
            let ends = [there.first(), there.last()].map(|byte| byte.copied());
            std::hint::black_box(ends);
            ring.consume(there.len());
            [sent, there.len(), segment.capacity]
        })
    }
}
