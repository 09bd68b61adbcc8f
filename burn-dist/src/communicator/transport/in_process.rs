//! Rank threads of one process: members read and write each other's memory, without copies between.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::room::{EMPTY, IN_USE, POSTED, Room};
use super::{
    Announcement, Arrays, Fault, Incoming, MAX_MESSAGE, Outgoing, Patience, Transport, spins,
};
use crate::communicator::Reduction;
use crate::communicator::chunks::Chunks;
use crate::communicator::reduce::reduce_parts;

/// Bytes reduced at a time, so that they stay in the cache while everybody's copy is written.
const BLOCK: usize = 32 << 10;

#[derive(Debug)]
pub(in crate::communicator) struct InProcessTransport {
    pub(super) room: Arc<Room>,
    pub(super) index: usize,
    pub(super) spins: u32,
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

/// Words and an array that another member has laid out for this one; given back on drop.
struct Taken<'a> {
    transport: &'a InProcessTransport,
    from: usize,
    words: (*const u8, usize),
    address: *mut u8,
    len: usize,
}

impl Taken<'_> {
    fn words(&self) -> &[u8] {
        let (address, len) = self.words;
        if len == 0 {
            return &[];
        }
        // SAFETY: the sender laid out live words and does not take them back while they are in use.
        unsafe { std::slice::from_raw_parts(address, len) }
    }

    fn bytes(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
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

    pub(super) fn others(&self) -> impl Iterator<Item = usize> + Clone + use<> {
        let (index, size) = (self.index, self.room.size);
        (0..size).filter(move |&other| other != index)
    }

    /// Lays words and an array out. Both must stay where they are until the `Posts` guard is dropped.
    fn post(&self, to: usize, words: &[u8], address: *mut u8, len: usize) {
        let mailbox = self.room.mailbox(self.index, to);
        let first = words.as_ptr().cast_mut();
        mailbox.words.store(first, Ordering::Relaxed);
        mailbox.words_len.store(words.len(), Ordering::Relaxed);
        mailbox.address.store(address, Ordering::Relaxed);
        mailbox.len.store(len, Ordering::Relaxed);
        mailbox.posted.fetch_add(1, Ordering::Relaxed);
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
        mailbox.taken.fetch_add(1, Ordering::Relaxed);
        Some(Taken {
            transport: self,
            from,
            words: (
                mailbox.words.load(Ordering::Relaxed),
                mailbox.words_len.load(Ordering::Relaxed),
            ),
            address: mailbox.address.load(Ordering::Relaxed),
            len: mailbox.len.load(Ordering::Relaxed),
        })
    }

    pub(super) fn is_posted(&self, from: usize) -> bool {
        let mailbox = self.room.mailbox(from, self.index);
        mailbox.state.load(Ordering::Acquire) == POSTED
    }

    /// Whether a member has laid something out for this one that was not taken, even if it took it back.
    pub(super) fn has_come(&self, from: usize) -> bool {
        let mailbox = self.room.mailbox(from, self.index);
        mailbox.posted.load(Ordering::Acquire) != mailbox.taken.load(Ordering::Acquire)
    }

    pub(super) fn is_emptied(&self, to: usize) -> bool {
        let mailbox = self.room.mailbox(self.index, to);
        mailbox.state.load(Ordering::Acquire) == EMPTY
    }

    /// Waits for what a member lays out, and takes it if its words fit.
    fn take(
        &self,
        from: usize,
        announcement: Option<&mut Announcement<'_>>,
        patience: Patience<'_>,
    ) -> Result<Taken<'_>, Fault> {
        self.wait(from, patience, || self.is_posted(from))?;
        let taken = self.try_take(from).expect("invariant: it was posted");
        if let Some(Announcement { heard, fits, .. }) = announcement
            && !fits(from, taken.words())
        {
            let place = from - usize::from(from > self.index);
            heard[place].clear();
            heard[place].extend_from_slice(taken.words());
            return Err(Fault::Disagrees { index: from });
        }
        Ok(taken)
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
        mut announcement: Option<Announcement<'_>>,
        outgoing: &[Outgoing<'_>],
        incoming: &mut [Incoming<'_>],
        patience: Patience<'_>,
    ) -> Result<(), Fault> {
        let this = &*self;
        let posts = Posts { transport: this };
        let speaks = announcement.is_some();
        let words = announcement.as_ref().map_or(&[][..], |a| a.header());
        let array = |to: usize| -> &[u8] {
            let found = outgoing.iter().find(|outgoing| outgoing.to == to);
            found.map_or(&[], |outgoing| outgoing.bytes)
        };
        let room = |from: usize, incoming: &[Incoming<'_>]| -> Option<usize> {
            incoming
                .iter()
                .position(|i| i.from == from && !i.bytes.is_empty())
        };
        let sent = this.others().filter(|&to| speaks || !array(to).is_empty());
        for to in sent.clone() {
            // Receivers of an exchange only read.
            this.post(to, words, array(to).as_ptr().cast_mut(), array(to).len());
        }
        for from in this.others() {
            let place = room(from, incoming);
            if place.is_none() && !speaks {
                continue;
            }
            let taken = this.take(from, announcement.as_mut(), patience);
            let taken = taken.map_err(|fault| {
                let later = this.others().filter(|&other| other >= from);
                let later = later.filter(|&other| speaks || room(other, incoming).is_some());
                let fault = this.let_be_seen(fault, sent.clone());
                this.all_waited_for(fault, later, sent.clone())
            })?;
            let target: &mut [u8] = match place {
                Some(place) => incoming[place].bytes,
                None => &mut [],
            };
            if taken.len != target.len() {
                return Err(unexpected(from, taken.len, target.len()));
            }
            target.copy_from_slice(taken.bytes());
        }
        this.await_emptied(sent.clone(), patience)?;
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
            this.post(message.to, message.bytes, std::ptr::null_mut(), 0);
        }
        for (i, (from, heard)) in peers.clone().zip(heard).enumerate() {
            this.wait(from, patience, || this.is_posted(from))
                .map_err(|fault| {
                    this.all_waited_for(fault, peers.clone().skip(i), peers.clone())
                })?;
            let taken = this.try_take(from).expect("invariant: it was posted");
            if taken.words().len() > MAX_MESSAGE {
                return Err(unexpected(from, taken.words().len(), MAX_MESSAGE));
            }
            heard.clear();
            heard.extend_from_slice(taken.words());
        }
        this.await_emptied(peers, patience)?;
        drop(posts);
        Ok(())
    }

    /// Everybody lays its array out; each member reads its own chunk of all of them and, where all
    /// want the result, writes it into all of them. Nobody touches another chunk.
    fn reduce(
        &mut self,
        mut announcement: Option<Announcement<'_>>,
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
        let words = announcement.as_ref().map_or(&[][..], |a| a.header());
        this.others().for_each(|to| this.post(to, words, base, len));
        this.await_all(patience)?;
        {
            let mut all: smallvec::SmallVec<[*mut u8; 8]> = smallvec::smallvec![base; size];
            let mut guards: smallvec::SmallVec<[Taken<'_>; 8]> = smallvec::SmallVec::new();
            for from in this.others() {
                let taken = this.take(from, announcement.as_mut(), patience);
                let taken = match taken {
                    Ok(taken) => taken,
                    Err(fault) => {
                        drop(guards);
                        return Err(this.let_be_seen(fault, this.others()));
                    }
                };
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
