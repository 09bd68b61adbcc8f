//! [`Room`]: what the rank threads of one group share: where arrays lie, who sleeps, who has ended.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::thread::futex;

use super::Fault;

/// Nothing is laid out.
pub(super) const EMPTY: u32 = 0;
/// An array is laid out and waits for its receiver.
pub(super) const POSTED: u32 = 1;
/// The receiver works on the array.
pub(super) const IN_USE: u32 = 2;

/// From one member to one other: where words and an array lie. The receiver empties it.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    pub(super) state: AtomicU32,
    /// How often something was laid out, and taken: who has come is known even after it gave up.
    pub(super) posted: AtomicU32,
    pub(super) taken: AtomicU32,
    pub(super) words: AtomicPtr<u8>,
    pub(super) words_len: AtomicUsize,
    pub(super) address: AtomicPtr<u8>,
    pub(super) len: AtomicUsize,
}

/// Wakes a sleeping member.
#[derive(Debug, Default)]
pub(super) struct Bell {
    pub(super) count: AtomicU32,
    pub(super) sleeping: AtomicBool,
}

/// What the members of one group share.
#[derive(Debug)]
pub(in crate::communicator) struct Room {
    pub(super) size: usize,
    mailboxes: Vec<Mailbox>,
    pub(super) bells: Vec<Bell>,
    left: Vec<AtomicBool>,
    failed: Mutex<Option<(usize, String)>>,
    is_failed: AtomicBool,
}

impl Room {
    pub(in crate::communicator) fn new(size: usize) -> Arc<Self> {
        Arc::new(Self {
            size,
            mailboxes: (0..size * size).map(|_| Mailbox::default()).collect(),
            bells: (0..size).map(|_| Bell::default()).collect(),
            left: (0..size).map(|_| AtomicBool::new(false)).collect(),
            failed: Mutex::new(None),
            is_failed: AtomicBool::new(false),
        })
    }

    /// A member makes no more calls, or never made one; with a cause, it failed.
    pub(in crate::communicator) fn end(&self, index: usize, cause: Option<&str>) {
        match cause {
            Some(cause) => {
                lock(&self.failed).get_or_insert_with(|| (index, cause.to_string()));
                self.is_failed.store(true, Ordering::Release);
            }
            None => self.left[index].store(true, Ordering::Release),
        }
        (0..self.size).for_each(|member| self.ring(member));
    }

    pub(super) fn mailbox(&self, from: usize, to: usize) -> &Mailbox {
        &self.mailboxes[from * self.size + to]
    }

    /// Wakes a member if it sleeps, after something was changed for it.
    pub(super) fn ring(&self, member: usize) {
        let bell = &self.bells[member];
        // Orders the change before this look; pairs with the fence in `wait`.
        fence(Ordering::SeqCst);
        if bell.sleeping.load(Ordering::Relaxed) {
            bell.count.fetch_add(1, Ordering::Release);
            // Nobody there to be woken is no error.
            let _ = futex::wake(&bell.count, futex::Flags::PRIVATE, 1);
        }
    }

    /// What makes waiting for `peer` pointless.
    pub(super) fn fault(&self, peer: usize) -> Option<Fault> {
        if self.is_failed.load(Ordering::Acquire)
            && let Some((index, cause)) = &*lock(&self.failed)
        {
            return Some(Fault::PeerFailed {
                index: *index,
                cause: cause.clone(),
            });
        }
        self.left[peer]
            .load(Ordering::Acquire)
            .then_some(Fault::Left { index: peer })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("invariant: no panic under this lock")
}
