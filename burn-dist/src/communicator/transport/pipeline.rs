//! [`Pipeline`]: reduces arrays block by block while they travel.
//!
//! Every member owns a chunk. To each other member it sends, block by block, what it has for that
//! member's chunk, and, a few blocks later, the reduced blocks of its own. A block is added in rank
//! order straight from where it arrives, and forwarded while it is in the cache: each array is read
//! and written once. What a lane carries, in both directions:
//!
//! ```text
//! C0 C1 C2 R0 C3 R1 C4 R2 ...        C: contribution, R: result, two blocks behind
//! ```
//!
//! No wait can be circular: a result depends on contributions to blocks before it only, and these
//! stand earlier in every lane.

use std::ops::Range;

use smallvec::SmallVec;

use super::job::{Job, Lanes, Wants};
use super::lane::Lane;
use super::{Arrays, Fault};
use crate::communicator::Reduction;
use crate::communicator::chunks::Chunks;
use crate::communicator::reduce::reduce_parts;

/// Bytes of a block; it holds whole elements.
const BLOCK: usize = 32 << 10;

/// How many blocks results are behind: through memory just enough to work side by side, over a
/// connection enough to fill it.
const LAG_SHARED: usize = 2;
const LAG_CONNECTED: usize = 32;

/// Where one direction of a lane stands.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cursor {
    step: usize,
    /// The result of this step is under way, not its contribution.
    result: bool,
    done: usize,
    begun: bool,
}

/// A piece of a chunk that travels as one parcel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Parcel {
    result: bool,
    /// Bytes within the chunk.
    start: usize,
    end: usize,
}

impl Cursor {
    /// The parcel under way, if any is left: contributions to a chunk of `contribution` bytes and
    /// results of one of `result` bytes.
    fn parcel(&mut self, contribution: usize, result: usize, lag: usize) -> Option<Parcel> {
        loop {
            let behind = self.step.checked_sub(lag);
            let (len, step) = match (self.result, behind) {
                (false, _) => (contribution, Some(self.step)),
                (true, behind) => (result, behind),
            };
            let start = step.map_or(len, |step| (step * BLOCK).min(len));
            let end = len.min(start + BLOCK);
            if self.done < end - start {
                return Some(Parcel {
                    result: self.result,
                    start,
                    end,
                });
            }
            let all_sent = self.step * BLOCK >= contribution;
            let all_shared = behind.is_some_and(|step| step * BLOCK >= result);
            if all_sent && (result == 0 || all_shared) {
                return None;
            }
            (self.done, self.begun) = (0, false);
            if self.result {
                self.step += 1;
            }
            self.result = !self.result;
        }
    }
}

/// Both directions of a lane.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flow {
    send: Cursor,
    receive: Cursor,
}

pub(super) struct Pipeline<'a> {
    pub(super) index: usize,
    pub(super) size: usize,
    pub(super) reduction: Reduction,
    pub(super) arrays: Arrays<'a>,
    pub(super) chunks: Chunks,
    /// Bytes of the own chunk that are reduced.
    pub(super) reduced: usize,
    pub(super) flows: &'a mut [Flow],
}

fn lag(lane: &Lane) -> usize {
    match lane {
        Lane::Shared(_) => LAG_SHARED,
        Lane::Connected(_) => LAG_CONNECTED,
    }
}

impl Pipeline<'_> {
    fn range(&self, index: usize) -> Range<usize> {
        self.chunks.byte_range(index, self.reduction.dtype.size())
    }

    fn len(&self, index: usize) -> usize {
        self.range(index).len()
    }

    /// Results travel only where everybody wants them.
    fn shared_len(&self, index: usize) -> usize {
        match self.arrays {
            Arrays::InPlace(_) => self.len(index),
            Arrays::Apart { .. } => 0,
        }
    }

    fn outgoing(&mut self, peer: usize, lane: &Lane) -> Option<Parcel> {
        let (contribution, result) = (self.len(peer), self.shared_len(self.index));
        self.flows[peer]
            .send
            .parcel(contribution, result, lag(lane))
    }

    fn incoming(&mut self, peer: usize, lane: &Lane) -> Option<Parcel> {
        let (contribution, result) = (self.len(self.index), self.shared_len(peer));
        let cursor = &mut self.flows[peer].receive;
        cursor.parcel(contribution, result, lag(lane))
    }

    /// What is under way from and to a member. Cursors are moved on by looking at them: these are
    /// looks at copies.
    fn open(&self, peer: usize, lanes: &Lanes) -> (Option<Parcel>, Option<Parcel>) {
        let Flow {
            mut send,
            mut receive,
        } = self.flows[peer];
        let lag = lag(lanes.at(peer));
        let (own, theirs) = (self.index, peer);
        (
            receive.parcel(self.len(own), self.shared_len(theirs), lag),
            send.parcel(self.len(theirs), self.shared_len(own), lag),
        )
    }

    /// Sends to a member what is there.
    fn send(&mut self, peer: usize, lane: &mut Lane) -> bool {
        let mut moved = false;
        while let Some(parcel) = self.outgoing(peer, lane) {
            let cursor = &mut self.flows[peer].send;
            if !std::mem::replace(&mut cursor.begun, true) {
                lane.begin_write();
            }
            let start = parcel.start + cursor.done;
            let (chunk, end) = match parcel.result {
                false => (peer, parcel.end),
                true => (self.index, parcel.end.min(self.reduced)),
            };
            if start >= end {
                break;
            }
            let base = self.range(chunk).start;
            let bytes = &self.arrays.input()[base + start..base + end];
            let count = lane.write(bytes);
            self.flows[peer].send.done += count;
            moved |= count > 0;
            if count < bytes.len() {
                break;
            }
        }
        moved
    }

    /// Receives a member's results, up to its next contribution.
    fn receive(&mut self, peer: usize, lane: &mut Lane) -> bool {
        let mut moved = false;
        while let Some(parcel) = self.incoming(peer, lane) {
            self.begin_read(peer, lane);
            if !parcel.result {
                break;
            }
            let cursor = self.flows[peer].receive;
            let base = self.range(peer).start;
            let (start, end) = (parcel.start + cursor.done, parcel.end);
            let count = lane.read(&mut self.arrays.output()[base + start..base + end]);
            self.flows[peer].receive.done += count;
            moved |= count > 0;
            if start + count < end {
                break;
            }
        }
        moved
    }

    fn begin_read(&mut self, peer: usize, lane: &mut Lane) {
        if !std::mem::replace(&mut self.flows[peer].receive.begun, true) {
            lane.begin_read();
        }
    }

    /// Adds what all members have contributed; whether that was anything.
    fn reduce(&mut self, lanes: &mut Lanes) -> bool {
        let element = self.reduction.dtype.size();
        let (index, size) = (self.index, self.size);
        let others = move || (0..size).filter(move |&peer| peer != index);
        let mut piece = usize::MAX;
        let mut place = (0, 0);
        if others().any(|peer| lanes.is_held(peer)) {
            return false;
        }
        for peer in others() {
            let lane = lanes.of(peer);
            match self.incoming(peer, lane) {
                Some(parcel) if !parcel.result => {
                    self.begin_read(peer, lane);
                    lane.fill();
                    let done = self.flows[peer].receive.done;
                    let rest = parcel.end - parcel.start - done;
                    place = (parcel.start + done, rest);
                    piece = piece.min(rest).min(lane.peek().len());
                }
                _ => return false,
            }
        }
        piece -= piece % element;
        if piece == 0 {
            return false;
        }
        debug_assert_eq!(place.0, self.reduced);
        // Looked at once: what a peer says about its ring may change at any time.
        let lanes_now = &*lanes;
        let mut views: SmallVec<[&[u8]; 8]> = SmallVec::new();
        for peer in 0..size {
            let view = match peer == index {
                true => &[],
                false => lanes_now.at(peer).peek(),
            };
            if peer != index && view.len() < piece {
                return false;
            }
            views.push(view);
        }
        let own = self.range(index);
        let from = own.start + self.reduced;
        let (input, target) = match &mut self.arrays {
            Arrays::InPlace(data) => (None, &mut data[from..from + piece]),
            Arrays::Apart { input, output } => (
                Some(&input[from..from + piece]),
                &mut output[self.reduced..self.reduced + piece],
            ),
        };
        if let Some(input) = input {
            target.copy_from_slice(input);
        }
        reduce_parts(
            self.reduction.dtype,
            self.reduction.op,
            size,
            index,
            |peer| &views[peer][..piece],
            target,
        );
        drop(views);
        for peer in others() {
            lanes.of(peer).consume(piece);
            self.flows[peer].receive.done += piece;
        }
        self.reduced += piece;
        true
    }
}

impl Job for Pipeline<'_> {
    fn advance(&mut self, lanes: &mut Lanes) -> Result<bool, Fault> {
        let mut moved = false;
        let (index, size) = (self.index, self.size);
        for peer in (0..size).filter(|&peer| peer != index) {
            let lane = lanes.of(peer);
            moved |= self.send(peer, lane);
            if !lanes.is_held(peer) {
                moved |= self.receive(peer, lanes.of(peer));
            }
        }
        while self.reduce(lanes) {
            moved = true;
        }
        Ok(moved)
    }

    fn is_done(&self, lanes: &Lanes) -> bool {
        let others = (0..self.size).filter(|&peer| peer != self.index);
        others
            .into_iter()
            .all(|peer| self.open(peer, lanes) == (None, None))
    }

    fn wants(&self, lanes: &Lanes, peer: usize) -> Wants {
        let (incoming, outgoing) = self.open(peer, lanes);
        let sent = self.flows[peer].send.done;
        let element = self.reduction.dtype.size();
        Wants {
            read: incoming.is_some_and(|p| p.result || lanes.at(peer).peek().len() < element),
            write: outgoing.is_some_and(|p| !p.result || p.start + sent < self.reduced),
        }
    }
}
