//! Rank threads of one process: members read and write each other's memory, without copies between.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use rustix::thread::futex;

use super::room::{EMPTY, IN_USE, POSTED, Room};
use super::{Arrays, Fault, Incoming, MAX_MESSAGE, Outgoing, Patience, Transport, spins};
use crate::communicator::Reduction;
use crate::communicator::chunks::Chunks;
use crate::communicator::reduce::reduce_parts;

/// How often a member then lets others run before it sleeps.
const YIELDS: u32 = 8;

/// Longest sleep before a look at the cancel flag.
const SLICE: Duration = Duration::from_millis(100);

/// Bytes reduced at a time, so that they stay in the cache while everybody's copy is written.
const BLOCK: usize = 32 << 10;

#[derive(Debug)]
pub(in crate::communicator) struct InProcessTransport {
    room: Arc<Room>,
    index: usize,
    spins: u32,
    hosts: Vec<usize>,
}

/// Arrays that this member has laid out, taken back on drop, so that no address outlives its array.
struct Posts<'a> {
    transport: &'a InProcessTransport,
}

impl Drop for Posts<'_> {
    fn drop(&mut self) {
        for to in self.transport.others() {
            let mailbox = self.transport.room.mailbox(self.transport.index, to);
            let withdraw = || {
                let (old, new) = (POSTED, EMPTY);
                let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
                mailbox.state.compare_exchange(old, new, success, failure)
            };
            // A receiver that is at it ends soon: it waits for nobody in between.
            while withdraw() == Err(IN_USE) {
                std::thread::yield_now();
            }
        }
    }
}

/// An array that another member has laid out for this one; given back on drop.
struct Taken<'a> {
    transport: &'a InProcessTransport,
    from: usize,
    address: *mut u8,
    len: usize,
}

impl Taken<'_> {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the sender laid out a live array and does not take it back while it is in use.
        unsafe { std::slice::from_raw_parts(self.address, self.len) }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let room = &self.transport.room;
        let mailbox = room.mailbox(self.from, self.transport.index);
        mailbox.state.store(EMPTY, Ordering::Release);
        room.ring(self.from);
    }
}

impl InProcessTransport {
    pub(in crate::communicator) fn new(room: Arc<Room>, index: usize) -> Self {
        let spins = spins(room.size);
        let hosts = vec![0; room.size];
        Self {
            room,
            index,
            spins,
            hosts,
        }
    }

    fn others(&self) -> impl Iterator<Item = usize> + Clone + use<> {
        let (index, size) = (self.index, self.room.size);
        (0..size).filter(move |&other| other != index)
    }

    /// Lays an array out. The pointer must stay good until the `Posts` guard is dropped.
    fn post(&self, to: usize, address: *mut u8, len: usize) {
        let mailbox = self.room.mailbox(self.index, to);
        mailbox.address.store(address, Ordering::Relaxed);
        mailbox.len.store(len, Ordering::Relaxed);
        mailbox.state.store(POSTED, Ordering::Release);
        self.room.ring(to);
    }

    /// Takes what `from` has laid out for this member, if it has.
    fn try_take(&self, from: usize) -> Option<Taken<'_>> {
        let mailbox = self.room.mailbox(from, self.index);
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let state = &mailbox.state;
        state
            .compare_exchange(POSTED, IN_USE, success, failure)
            .ok()?;
        Some(Taken {
            transport: self,
            from,
            address: mailbox.address.load(Ordering::Relaxed),
            len: mailbox.len.load(Ordering::Relaxed),
        })
    }

    fn is_posted(&self, from: usize) -> bool {
        let mailbox = self.room.mailbox(from, self.index);
        mailbox.state.load(Ordering::Acquire) == POSTED
    }

    fn is_emptied(&self, to: usize) -> bool {
        let mailbox = self.room.mailbox(self.index, to);
        mailbox.state.load(Ordering::Acquire) == EMPTY
    }

    /// Waits until `ready`; `peer` is the member that makes it so.
    fn wait(
        &self,
        peer: usize,
        patience: Patience<'_>,
        ready: impl Fn() -> bool,
    ) -> Result<(), Fault> {
        for _ in 0..self.spins {
            if ready() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        for _ in 0..YIELDS {
            if ready() {
                return Ok(());
            }
            std::thread::yield_now();
        }
        let bell = &self.room.bells[self.index];
        loop {
            let before = bell.count.load(Ordering::Acquire);
            bell.sleeping.store(true, Ordering::Relaxed);
            // Orders the note that this member sleeps before its last look.
            fence(Ordering::SeqCst);
            let outcome = self.sleep(peer, patience, before, &ready);
            bell.sleeping.store(false, Ordering::Relaxed);
            if outcome? {
                return Ok(());
            }
        }
    }

    fn sleep(
        &self,
        peer: usize,
        patience: Patience<'_>,
        before: u32,
        ready: &impl Fn() -> bool,
    ) -> Result<bool, Fault> {
        if ready() {
            return Ok(true);
        }
        if let Some(fault) = self.room.fault(peer) {
            // It may have laid something out just before it went.
            return if ready() { Ok(true) } else { Err(fault) };
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
        let rest = rest.min(SLICE);
        let rest = futex::Timespec {
            tv_sec: rest.as_secs() as i64,
            tv_nsec: rest.subsec_nanos().into(),
        };
        let bell = &self.room.bells[self.index].count;
        // A bell that rang before, an interruption and the end of time are all reasons to look.
        let _ = futex::wait(bell, futex::Flags::PRIVATE, before, Some(&rest));
        Ok(false)
    }

    /// After a timeout: all members whose array did not come or was not taken.
    fn all_waited_for(
        &self,
        first: Fault,
        incoming: impl Iterator<Item = usize>,
        outgoing: impl Iterator<Item = usize>,
    ) -> Fault {
        let Fault::Timeout { mut waiting_for } = first else {
            return first;
        };
        waiting_for.extend(incoming.filter(|&from| !self.is_posted(from)));
        waiting_for.extend(outgoing.filter(|&to| !self.is_emptied(to)));
        waiting_for.sort_unstable();
        waiting_for.dedup();
        Fault::Timeout { waiting_for }
    }

    /// Waits until everybody has laid out an array for this member.
    fn await_all(&self, patience: Patience<'_>) -> Result<(), Fault> {
        for from in self.others() {
            self.wait(from, patience, || self.is_posted(from))
                .map_err(|fault| self.all_waited_for(fault, self.others(), std::iter::empty()))?;
        }
        Ok(())
    }

    /// Waits until the given members have emptied what was laid out for them.
    fn await_emptied(
        &self,
        to: impl Iterator<Item = usize> + Clone,
        patience: Patience<'_>,
    ) -> Result<(), Fault> {
        for peer in to.clone() {
            self.wait(peer, patience, || self.is_emptied(peer))
                .map_err(|fault| self.all_waited_for(fault, std::iter::empty(), to.clone()))?;
        }
        Ok(())
    }
}

fn unexpected(from: usize, got: usize, expected: usize) -> Fault {
    Fault::Garbled {
        index: from,
        detail: format!("{got} bytes instead of {expected}"),
    }
}

impl Transport for InProcessTransport {
    fn exchange(
        &mut self,
        outgoing: &[Outgoing<'_>],
        incoming: &mut [Incoming<'_>],
        patience: Patience<'_>,
    ) -> Result<(), Fault> {
        let this = &*self;
        let posts = Posts { transport: this };
        let sent = outgoing
            .iter()
            .filter(|outgoing| !outgoing.bytes.is_empty());
        for outgoing in sent.clone() {
            // Receivers of an exchange only read.
            let address = outgoing.bytes.as_ptr().cast_mut();
            this.post(outgoing.to, address, outgoing.bytes.len());
        }
        for i in 0..incoming.len() {
            let from = incoming[i].from;
            if incoming[i].bytes.is_empty() {
                continue;
            }
            this.wait(from, patience, || this.is_posted(from))
                .map_err(|fault| {
                    let rest = incoming[i..].iter().filter(|i| !i.bytes.is_empty());
                    this.all_waited_for(fault, rest.map(|i| i.from), sent.clone().map(|o| o.to))
                })?;
            let taken = this.try_take(from).expect("invariant: it was posted");
            let target = &mut *incoming[i].bytes;
            if taken.len != target.len() {
                return Err(unexpected(from, taken.len, target.len()));
            }
            target.copy_from_slice(taken.bytes());
        }
        this.await_emptied(sent.map(|outgoing| outgoing.to), patience)?;
        drop(posts);
        Ok(())
    }

    fn exchange_messages(
        &mut self,
        messages: &[Outgoing<'_>],
        heard: &mut [Vec<u8>],
        patience: Patience<'_>,
    ) -> Result<(), Fault> {
        let this = &*self;
        let posts = Posts { transport: this };
        let peers = messages.iter().map(|message| message.to);
        for message in messages {
            let address = message.bytes.as_ptr().cast_mut();
            this.post(message.to, address, message.bytes.len());
        }
        for (i, (from, heard)) in peers.clone().zip(heard).enumerate() {
            this.wait(from, patience, || this.is_posted(from))
                .map_err(|fault| {
                    this.all_waited_for(fault, peers.clone().skip(i), peers.clone())
                })?;
            let taken = this.try_take(from).expect("invariant: it was posted");
            if taken.len > MAX_MESSAGE {
                return Err(unexpected(from, taken.len, MAX_MESSAGE));
            }
            heard.clear();
            heard.extend_from_slice(taken.bytes());
        }
        this.await_emptied(peers, patience)?;
        drop(posts);
        Ok(())
    }

    /// Everybody lays its array out; each member reads its own chunk of all of them and, where all
    /// want the result, writes it into all of them. Nobody touches another chunk.
    fn reduce(
        &mut self,
        reduction: Reduction,
        mut arrays: Arrays<'_>,
        patience: Patience<'_>,
    ) -> Result<(), Fault> {
        let this = &*self;
        let (index, size) = (this.index, this.room.size);
        let len = arrays.input().len();
        let element = reduction.dtype.size();
        let own = Chunks::new(len / element, size).byte_range(index, element);
        // All access to this member's array, its own included, goes through this pointer.
        let (base, share) = match &mut arrays {
            Arrays::InPlace(data) => (data.as_mut_ptr(), true),
            Arrays::Apart { input, .. } => (input.as_ptr().cast_mut(), false),
        };
        let posts = Posts { transport: this };
        this.others().for_each(|to| this.post(to, base, len));
        this.await_all(patience)?;
        {
            let mut all: smallvec::SmallVec<[*mut u8; 8]> = smallvec::smallvec![base; size];
            let mut guards: smallvec::SmallVec<[Taken<'_>; 8]> = smallvec::SmallVec::new();
            for from in this.others() {
                let taken = this.try_take(from).expect("invariant: it was posted");
                if taken.len != len {
                    return Err(unexpected(from, taken.len, len));
                }
                all[from] = taken.address;
                guards.push(taken);
            }
            for start in own.clone().step_by(BLOCK) {
                let count = BLOCK.min(own.end - start);
                // SAFETY: the arrays are live while they are in use, `start..start + count` lies
                // inside them, and only this member touches this chunk of any of them.
                let part = |peer: usize| unsafe {
                    std::slice::from_raw_parts(all[peer].add(start).cast_const(), count)
                };
                let target = match &mut arrays {
                    // SAFETY: as above; `part` is not asked for this member's own block.
                    Arrays::InPlace(_) => unsafe {
                        std::slice::from_raw_parts_mut(base.add(start), count)
                    },
                    Arrays::Apart { output, .. } => {
                        let at = start - own.start;
                        let target = &mut output[at..at + count];
                        target.copy_from_slice(part(index));
                        target
                    }
                };
                reduce_parts(reduction.dtype, reduction.op, size, index, part, target);
                if share {
                    for peer in this.others() {
                        // SAFETY: as above; different arrays do not overlap.
                        unsafe {
                            let there = all[peer].add(start);
                            std::ptr::copy_nonoverlapping(target.as_ptr(), there, count);
                        }
                    }
                }
            }
        }
        this.await_emptied(this.others(), patience)?;
        drop(posts);
        Ok(())
    }

    fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    fn abort(&mut self, cause: &str) {
        self.room.end(self.index, Some(cause));
    }

    fn leave(&mut self) {
        self.room.end(self.index, None);
    }
}
