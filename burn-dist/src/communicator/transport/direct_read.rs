//! Long arrays between neighbours: each member reads the others' memory instead of being sent it.
//!
//! Members say where their arrays lie, read, and say that they have read; only then is a call over,
//! so an array stays where it is while it is read. A member whose call fails gives up: it says so in
//! shared memory before its arrays go, and readers look there after they have read. The same bytes and
//! the same order of sums as in the pipeline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::neighbour::LONG;
use super::segment::Segment;
use super::streams::{Home, StreamTransport};
use super::{Announcement, Arrays, Fault, Incoming, Outgoing, Patience, Transport};
use crate::communicator::Reduction;
use crate::communicator::chunks::Chunks;
use crate::communicator::reduce::reduce_parts;

/// Bytes read and added at a time: with a few members they stay in the cache.
const BLOCK: usize = 64 << 10;

/// How long a member waits for the reason why another one cannot be read.
const GRACE: Duration = Duration::from_millis(300);

/// Says on drop that this member's arrays go.
struct GiveUp {
    segment: Arc<Segment>,
    own: usize,
    armed: bool,
}

impl Drop for GiveUp {
    fn drop(&mut self) {
        if self.armed {
            self.segment.give_up(self.own);
        }
    }
}

type Few<T> = SmallVec<[T; 8]>;

impl StreamTransport {
    /// Whether an array of `len` bytes to or from `peer` is read rather than sent. Both sides know.
    pub(super) fn reads(&self, peer: usize, len: usize) -> bool {
        len >= LONG && self.neighbours[peer].is_some()
    }

    /// Whether all members are neighbours and the array is long enough to be cut up and read.
    pub(super) fn reads_all(&self, len: usize) -> bool {
        let size = self.neighbours.len();
        len >= LONG * size && (0..size).all(|p| p == self.index || self.neighbours[p].is_some())
    }

    /// Tells each of some members a number, and hears theirs; with an announcement, behind that.
    fn tell(
        &mut self,
        announcement: Option<Announcement<'_>>,
        numbers: &[(usize, u64)],
        patience: Patience<'_>,
    ) -> Result<Few<u64>, Fault> {
        if let Some(announcement) = announcement {
            return self.announce(announcement, numbers, patience);
        }
        let words: Few<[u8; 8]> = numbers.iter().map(|(_, n)| n.to_le_bytes()).collect();
        let messages: Few<Outgoing<'_>> = numbers
            .iter()
            .zip(&words)
            .map(|(&(to, _), word)| Outgoing { to, bytes: word })
            .collect();
        let mut heard = std::mem::take(&mut self.heard);
        heard.resize_with(self.neighbours.len(), Vec::new);
        let outcome = self.exchange_messages(&messages, &mut heard[..messages.len()], patience);
        let answers: Option<Few<u64>> = heard[..messages.len()]
            .iter()
            .map(|word| Some(u64::from_le_bytes(word.as_slice().try_into().ok()?)))
            .collect();
        self.heard = heard;
        outcome?;
        answers.ok_or_else(|| Fault::Garbled {
            index: numbers[0].0,
            detail: "no address".into(),
        })
    }

    fn announce(
        &mut self,
        announcement: Announcement<'_>,
        numbers: &[(usize, u64)],
        patience: Patience<'_>,
    ) -> Result<Few<u64>, Fault> {
        let header = announcement.header();
        let (index, size) = (self.index, self.neighbours.len());
        let others = (0..size).filter(|&other| other != index);
        let number = |other: usize| numbers.iter().find(|(peer, _)| *peer == other);
        let mut words = std::mem::take(&mut self.words);
        words.resize_with(size - 1, Vec::new);
        for (other, word) in others.clone().zip(&mut words) {
            word.clear();
            word.extend_from_slice(header);
            if let Some((_, number)) = number(other) {
                word.extend_from_slice(&number.to_le_bytes());
            }
        }
        let messages: Few<Outgoing<'_>> = others
            .clone()
            .zip(&words)
            .map(|(to, word)| Outgoing { to, bytes: word })
            .collect();
        let outcome = self.exchange_messages(&messages, announcement.heard, patience);
        drop(messages);
        self.words = words;
        outcome?;
        announcement.check(index)?;
        let mut answers = Few::new();
        for (peer, _) in numbers {
            let place = others.clone().position(|other| other == *peer);
            let heard =
                &announcement.heard[place.expect("invariant: a member has a number for others")];
            // What fits begins as this member's own words do, whose length is known.
            let number = heard
                .get(header.len()..)
                .and_then(|rest| rest.try_into().ok());
            answers.push(u64::from_le_bytes(number.ok_or_else(|| {
                Fault::Garbled {
                    index: *peer,
                    detail: "no address".into(),
                }
            })?));
        }
        Ok(answers)
    }

    /// Copies from a neighbour's memory.
    fn fetch(&mut self, from: usize, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        let neighbour = self.neighbours[from].expect("invariant: asked before");
        neighbour
            .read(address, bytes)
            .map_err(|error| self.why(from, &format!("its memory cannot be read: {error}")))
    }

    /// Whether what was read from these members is what they meant to be read.
    fn check_read(&mut self, from: impl Iterator<Item = usize>) -> Result<(), Fault> {
        for peer in from {
            if self.home().segment.has_given_up(self.place(peer)) {
                return Err(self.why(peer, "it gave the call up"));
            }
        }
        Ok(())
    }

    fn home(&self) -> &Home {
        self.home
            .as_ref()
            .expect("invariant: neighbours share memory")
    }

    /// A member's position on this host.
    fn place(&self, peer: usize) -> usize {
        let host = self.hosts[self.index];
        self.hosts[..peer].iter().filter(|&&h| h == host).count()
    }

    /// Why a member cannot be read: its own words, or those of others, if they come soon.
    fn why(&mut self, peer: usize, detail: &str) -> Fault {
        let until = Instant::now() + GRACE;
        while Instant::now() < until {
            if let Err(said) = self.control.watch() {
                return said;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut indices: Vec<usize> = self.control.lost().collect();
        if indices.is_empty() {
            indices.push(peer);
        }
        Fault::Lost {
            indices,
            detail: detail.into(),
        }
    }

    /// Runs a part of a call in which others read this member's arrays; if it fails, they learn that
    /// before the arrays go, whatever way.
    fn while_read<R>(
        &mut self,
        part: impl FnOnce(&mut Self) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        let (segment, own) = (self.home().segment.clone(), self.home().own);
        let mut guard = GiveUp {
            segment,
            own,
            armed: true,
        };
        let outcome = part(self);
        guard.armed = outcome.is_err();
        outcome
    }

    /// The long arrays of an exchange. Returns an announcement that is still to be made.
    pub(super) fn exchange_by_reading<'a>(
        &mut self,
        announcement: Option<Announcement<'a>>,
        outgoing: &[Outgoing<'_>],
        incoming: &mut [Incoming<'_>],
        patience: Patience<'_>,
    ) -> Result<Option<Announcement<'a>>, Fault> {
        let mut addresses: Few<(usize, u64)> = outgoing
            .iter()
            .filter(|outgoing| self.reads(outgoing.to, outgoing.bytes.len()))
            .map(|outgoing| (outgoing.to, outgoing.bytes.as_ptr() as u64))
            .collect();
        for incoming in incoming.iter() {
            let known = addresses.iter().any(|(peer, _)| *peer == incoming.from);
            if self.reads(incoming.from, incoming.bytes.len()) && !known {
                addresses.push((incoming.from, 0));
            }
        }
        if addresses.is_empty() {
            return Ok(announcement);
        }
        self.while_read(|this| this.read_arrays(announcement, &addresses, incoming, patience))?;
        Ok(None)
    }

    fn read_arrays(
        &mut self,
        announcement: Option<Announcement<'_>>,
        addresses: &[(usize, u64)],
        incoming: &mut [Incoming<'_>],
        patience: Patience<'_>,
    ) -> Result<(), Fault> {
        let there = self.tell(announcement, addresses, patience)?;
        for incoming in incoming.iter_mut() {
            if self.reads(incoming.from, incoming.bytes.len()) {
                let place = addresses.iter().position(|(p, _)| *p == incoming.from);
                let address = there[place.expect("invariant: listed above")];
                self.fetch(incoming.from, address, incoming.bytes)?;
            }
        }
        self.check_read(addresses.iter().map(|(peer, _)| *peer))?;
        self.tell(None, addresses, patience).map(drop)
    }

    /// A reduction among neighbours only.
    pub(super) fn reduce_by_reading(
        &mut self,
        announcement: Option<Announcement<'_>>,
        reduction: Reduction,
        arrays: Arrays<'_>,
        patience: Patience<'_>,
    ) -> Result<(), Fault> {
        self.while_read(|this| this.reduce_arrays(announcement, reduction, arrays, patience))
    }

    fn reduce_arrays(
        &mut self,
        announcement: Option<Announcement<'_>>,
        reduction: Reduction,
        mut arrays: Arrays<'_>,
        patience: Patience<'_>,
    ) -> Result<(), Fault> {
        let (index, size) = (self.index, self.neighbours.len());
        let element = reduction.dtype.size();
        let chunks = Chunks::new(arrays.input().len() / element, size);
        let own = chunks.byte_range(index, element);
        let others = (0..size).filter(|&peer| peer != index);
        let base = match &mut arrays {
            Arrays::InPlace(data) => data.as_mut_ptr() as u64,
            Arrays::Apart { input, .. } => input.as_ptr() as u64,
        };
        let addresses: Few<(usize, u64)> = others.clone().map(|peer| (peer, base)).collect();
        let there = self.tell(announcement, &addresses, patience)?;
        let mut blocks = std::mem::take(&mut self.blocks);
        blocks.resize(BLOCK * size, 0);
        for start in own.clone().step_by(BLOCK) {
            let count = BLOCK.min(own.end - start);
            for (peer, address) in others.clone().zip(&there) {
                let block = &mut blocks[peer * BLOCK..peer * BLOCK + count];
                self.fetch(peer, address.wrapping_add(start as u64), block)?;
            }
            let target = match &mut arrays {
                Arrays::InPlace(data) => &mut data[start..start + count],
                Arrays::Apart { input, output } => {
                    let at = start - own.start;
                    let target = &mut output[at..at + count];
                    target.copy_from_slice(&input[start..start + count]);
                    target
                }
            };
            let blocks = &blocks;
            let part = |peer: usize| &blocks[peer * BLOCK..peer * BLOCK + count];
            reduce_parts(reduction.dtype, reduction.op, size, index, part, target);
        }
        self.blocks = blocks;
        self.check_read(others.clone())?;
        // Everybody has read what it adds, and its own chunk is ready.
        self.tell(None, &addresses, patience)?;
        if let Arrays::InPlace(data) = &mut arrays {
            for (peer, address) in others.clone().zip(&there) {
                let chunk = chunks.byte_range(peer, element);
                let address = address.wrapping_add(chunk.start as u64);
                self.fetch(peer, address, &mut data[chunk])?;
            }
            self.check_read(others)?;
            self.tell(None, &addresses, patience)?;
        }
        Ok(())
    }
}
