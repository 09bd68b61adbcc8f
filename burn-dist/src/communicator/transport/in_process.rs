//! Rank threads of one process: a receiver copies straight from the sender's memory.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::{Fault, Incoming, Outgoing, Patience, Transport};
use crate::communicator::header::MAX_HEADER;

/// Looks at a mailbox before a member sleeps: some tens of microseconds where every member has a
/// core, few where members must take turns.
const SPINS_WITH_A_CORE: u32 = 2000;
const SPINS_WITHOUT: u32 = 20;

/// Longest sleep before a look at the cancel flag.
const SLICE: Duration = Duration::from_millis(100);

/// What a sender has laid out for one receiver.
#[derive(Debug, Clone, Copy)]
struct Posted {
    address: *const u8,
    len: usize,
}

// SAFETY: the address is only read by the receiver, under the mailbox's lock, while the sender waits
// in `exchange` and so keeps the memory alive and unchanged; see `Post`.
unsafe impl Send for Posted {}

/// From one member to one other. Empty when the receiver has taken what was posted.
#[derive(Debug, Default)]
struct Mailbox {
    posted: Mutex<Option<Posted>>,
    changed: Condvar,
}

/// What the members of one group share.
#[derive(Debug)]
pub(in crate::communicator) struct Room {
    size: usize,
    mailboxes: Vec<Mailbox>,
    left: Vec<AtomicBool>,
    failed: Mutex<Option<(usize, String)>>,
    is_failed: AtomicBool,
}

impl Room {
    pub(in crate::communicator) fn new(size: usize) -> Arc<Self> {
        Arc::new(Self {
            size,
            mailboxes: (0..size * size).map(|_| Mailbox::default()).collect(),
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
        self.wake_all();
    }

    fn mailbox(&self, from: usize, to: usize) -> &Mailbox {
        &self.mailboxes[from * self.size + to]
    }

    /// What makes waiting for `peer` pointless.
    fn fault(&self, peer: usize) -> Option<Fault> {
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

    fn wake_all(&self) {
        for mailbox in &self.mailboxes {
            // The lock orders this wake-up after a sleeper's last look.
            drop(lock(&mailbox.posted));
            mailbox.changed.notify_all();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("invariant: no panic under this lock")
}

#[derive(Debug)]
pub(in crate::communicator) struct InProcessTransport {
    room: Arc<Room>,
    index: usize,
    spins: u32,
}

impl InProcessTransport {
    pub(in crate::communicator) fn new(room: Arc<Room>, index: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spins = match room.size <= cores {
            true => SPINS_WITH_A_CORE,
            false => SPINS_WITHOUT,
        };
        Self { room, index, spins }
    }

    /// Waits until `ready` finds what it wants in the mailbox.
    fn wait<'a>(
        &'a self,
        mailbox: &'a Mailbox,
        peer: usize,
        patience: Patience<'_>,
        ready: impl Fn(&Option<Posted>) -> bool,
    ) -> Result<MutexGuard<'a, Option<Posted>>, Fault> {
        for _ in 0..self.spins {
            if let Ok(posted) = mailbox.posted.try_lock()
                && ready(&posted)
            {
                return Ok(posted);
            }
            std::hint::spin_loop();
        }
        let mut posted = lock(&mailbox.posted);
        loop {
            if ready(&posted) {
                return Ok(posted);
            }
            if let Some(fault) = self.room.fault(peer) {
                return Err(fault);
            }
            if patience.cancelled.load(Ordering::Acquire) {
                return Err(Fault::Cancelled);
            }
            let rest = patience.deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Err(Fault::Timeout {
                    waiting_for: vec![peer],
                });
            }
            posted = mailbox
                .changed
                .wait_timeout(posted, rest.min(SLICE))
                .expect("invariant: no panic under this lock")
                .0;
        }
    }

    /// Waits for what `from` has posted and hands it to `take`.
    fn receive<R>(
        &self,
        from: usize,
        patience: Patience<'_>,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, Fault> {
        let mailbox = self.room.mailbox(from, self.index);
        let mut posted = self.wait(mailbox, from, patience, Option::is_some)?;
        let Posted { address, len } = posted.take().expect("invariant: waited for it");
        // SAFETY: the sender posted a live slice and stays in `exchange` until the mailbox is empty
        // or it has emptied the mailbox itself, for which it needs the lock that is held here.
        let bytes = unsafe { std::slice::from_raw_parts(address, len) };
        let result = take(bytes);
        drop(posted);
        mailbox.changed.notify_all();
        Ok(result)
    }

    /// Members whose mail did not come or was not taken, after a first timeout.
    fn others_waited_for(
        &self,
        first: Fault,
        incoming: impl Iterator<Item = usize>,
        outgoing: impl Iterator<Item = usize>,
    ) -> Fault {
        let Fault::Timeout { mut waiting_for } = first else {
            return first;
        };
        waiting_for.extend(
            incoming.filter(|&from| lock(&self.room.mailbox(from, self.index).posted).is_none()),
        );
        waiting_for.extend(
            outgoing.filter(|&to| lock(&self.room.mailbox(self.index, to).posted).is_some()),
        );
        waiting_for.sort_unstable();
        waiting_for.dedup();
        Fault::Timeout { waiting_for }
    }
}

/// Mail that this member has laid out; taken back on drop, so that no address outlives its slice.
struct Post<'a> {
    transport: &'a InProcessTransport,
    to: usize,
}

impl<'a> Post<'a> {
    fn new(transport: &'a InProcessTransport, to: usize, bytes: &[u8]) -> Self {
        let mailbox = transport.room.mailbox(transport.index, to);
        let posted = Posted {
            address: bytes.as_ptr(),
            len: bytes.len(),
        };
        *lock(&mailbox.posted) = Some(posted);
        mailbox.changed.notify_all();
        Self { transport, to }
    }

    fn wait(&self, patience: Patience<'_>) -> Result<(), Fault> {
        let mailbox = self.transport.room.mailbox(self.transport.index, self.to);
        self.transport
            .wait(mailbox, self.to, patience, Option::is_none)
            .map(drop)
    }
}

impl Drop for Post<'_> {
    fn drop(&mut self) {
        let mailbox = self.transport.room.mailbox(self.transport.index, self.to);
        *lock(&mailbox.posted) = None;
    }
}

impl Transport for InProcessTransport {
    fn exchange(
        &mut self,
        outgoing: &[Outgoing<'_>],
        incoming: &mut [Incoming<'_>],
        patience: Patience<'_>,
    ) -> Result<(), Fault> {
        let posts: Vec<Post<'_>> = outgoing
            .iter()
            .filter(|outgoing| !outgoing.bytes.is_empty())
            .map(|outgoing| Post::new(self, outgoing.to, outgoing.bytes))
            .collect();
        let mut outcome = Ok(());
        let mut arrived = 0;
        for incoming in incoming.iter_mut() {
            if !incoming.bytes.is_empty() {
                let (from, target) = (incoming.from, &mut *incoming.bytes);
                let received = self.receive(from, patience, |bytes| {
                    if bytes.len() != target.len() {
                        let detail = format!("{} bytes instead of {}", bytes.len(), target.len());
                        return Err(Fault::Garbled {
                            index: from,
                            detail,
                        });
                    }
                    target.copy_from_slice(bytes);
                    Ok(())
                });
                outcome = received.and_then(|copied| copied);
            }
            if outcome.is_err() {
                break;
            }
            arrived += 1;
        }
        if outcome.is_ok() {
            outcome = posts.iter().try_for_each(|post| post.wait(patience));
        }
        outcome.map_err(|fault| {
            let missing = incoming[arrived..].iter().filter(|i| !i.bytes.is_empty());
            let missing: Vec<usize> = missing.map(|i| i.from).collect();
            self.others_waited_for(fault, missing.into_iter(), posts.iter().map(|p| p.to))
        })
    }

    fn exchange_messages(
        &mut self,
        messages: &[Outgoing<'_>],
        patience: Patience<'_>,
    ) -> Result<Vec<Vec<u8>>, Fault> {
        let peers: Vec<usize> = messages.iter().map(|message| message.to).collect();
        let posts: Vec<Post<'_>> = messages
            .iter()
            .map(|message| Post::new(self, message.to, message.bytes))
            .collect();
        let mut heard = Vec::with_capacity(peers.len());
        let mut outcome = Ok(());
        for &peer in &peers {
            match self.receive(peer, patience, |bytes| {
                (bytes.len() <= MAX_HEADER).then(|| bytes.to_vec())
            }) {
                Ok(Some(message)) => heard.push(message),
                Ok(None) => {
                    outcome = Err(Fault::Garbled {
                        index: peer,
                        detail: "an array instead of a header".into(),
                    });
                }
                Err(fault) => outcome = Err(fault),
            }
            if outcome.is_err() {
                break;
            }
        }
        if outcome.is_ok() {
            outcome = posts.iter().try_for_each(|post| post.wait(patience));
        }
        match outcome {
            Ok(()) => Ok(heard),
            Err(fault) => {
                let missing = peers[heard.len()..].iter().copied();
                Err(self.others_waited_for(fault, missing, posts.iter().map(|p| p.to)))
            }
        }
    }

    fn frame_bytes(&self) -> u64 {
        0
    }

    fn abort(&mut self, cause: &str) {
        self.room.end(self.index, Some(cause));
    }

    fn leave(&mut self) {
        self.room.end(self.index, None);
    }
}
