//! Transports: how bytes get from one member of a group to another.

mod announced;
mod control;
mod direct_read;
mod exchange;
mod fault;
mod in_process;
mod job;
mod lane;
mod negotiation;
mod neighbour;
mod pipeline;
mod recycled;
mod room;
mod segment;
mod streams;
mod waiting;

use std::fmt::Debug;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use super::Reduction;

pub(super) use fault::Fault;
pub(super) use in_process::InProcessTransport;
pub(super) use negotiation::negotiate;
pub use recycled::MemoryPool;
pub(super) use room::Room;
pub(super) use streams::StreamTransport;

/// Longest message: a header with counts for a few thousand members.
pub(super) const MAX_MESSAGE: usize = 64 << 10;

/// A message's length goes before it, as a `u32`.
pub(super) const MESSAGE_HEAD: usize = 4;

/// Looks before a member gives its core away: some tens of microseconds where every member has a
/// core, few where members must take turns.
pub(super) fn spins(members: usize) -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if members <= cores { 4000 } else { 10 }
}

/// Bytes for one member.
#[derive(Debug)]
pub(super) struct Outgoing<'a> {
    pub(super) to: usize,
    pub(super) bytes: &'a [u8],
}

/// Room for bytes from one member.
#[derive(Debug)]
pub(super) struct Incoming<'a> {
    pub(super) from: usize,
    pub(super) bytes: &'a mut [u8],
}

/// What a member says about its call to all others, in index order. It goes ahead of the call's own
/// bytes, which wait for no answer; a member's bytes are only looked at once its words fit.
pub(super) struct Announcement<'a> {
    /// The header as a message: its length first.
    pub(super) frame: &'a [u8],
    /// What the others say, in their order. More may follow a header than the header itself.
    pub(super) heard: &'a mut [Vec<u8>],
    /// Whether the words of a member, by index, fit this member's own.
    pub(super) fits: &'a dyn Fn(usize, &[u8]) -> bool,
}

impl<'a> Announcement<'a> {
    pub(super) fn header(&self) -> &'a [u8] {
        &self.frame[MESSAGE_HEAD..]
    }

    /// Once all others have spoken to member `index`.
    pub(super) fn check(&self, index: usize) -> Result<(), Fault> {
        let others = (0..=self.heard.len()).filter(|&other| other != index);
        let mut spoken = others.zip(&*self.heard);
        match spoken.find(|(other, words)| !(self.fits)(*other, words)) {
            Some((index, _)) => Err(Fault::Disagrees { index }),
            None => Ok(()),
        }
    }
}

/// When to stop waiting.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience<'a> {
    pub(super) deadline: Instant,
    /// Set when this rank itself gives the group up.
    pub(super) cancelled: &'a AtomicBool,
}

/// What a reduction works on, cut into one chunk per member.
#[derive(Debug)]
pub(super) enum Arrays<'a> {
    /// Every member's array becomes the reduced one.
    InPlace(&'a mut [u8]),
    /// Every member gets the chunk that it owns.
    Apart {
        input: &'a [u8],
        output: &'a mut [u8],
    },
}

impl Arrays<'_> {
    pub(super) fn input(&self) -> &[u8] {
        match self {
            Self::InPlace(data) => data,
            Self::Apart { input, .. } => input,
        }
    }

    pub(super) fn output(&mut self) -> &mut [u8] {
        match self {
            Self::InPlace(data) => data,
            Self::Apart { output, .. } => output,
        }
    }
}

/// Moves bytes between the members of one group; one thread uses it at a time.
///
/// After an `Err` it is only good for `abort`.
pub(super) trait Transport: Debug + Send {
    /// Sends and receives at the same time, so that no order of members can block. At most one
    /// outgoing and one incoming array per member, of the sizes that its peer expects; both sides
    /// pass over empty ones. An announcement is exchanged with all members, whoever sends arrays.
    fn exchange(
        &mut self,
        announcement: Option<Announcement<'_>>,
        outgoing: &[Outgoing<'_>],
        incoming: &mut [Incoming<'_>],
        patience: Patience<'_>,
    ) -> Result<(), Fault>;

    /// Sends a short message to each of some members and receives theirs, in the same order.
    fn exchange_messages(
        &mut self,
        messages: &[Outgoing<'_>],
        heard: &mut [Vec<u8>],
        patience: Patience<'_>,
    ) -> Result<(), Fault>;

    /// Reduces in rank order while the bytes travel; the same bits and bytes as the direct exchange in
    /// whole arrays.
    fn reduce(
        &mut self,
        announcement: Option<Announcement<'_>>,
        reduction: Reduction,
        arrays: Arrays<'_>,
        patience: Patience<'_>,
    ) -> Result<(), Fault>;

    /// Each member's host, as a number that only says which members share one.
    fn hosts(&self) -> &[usize];

    /// Tells all members why the group ends. Takes a bounded time.
    fn abort(&mut self, cause: &str);

    /// Tells all members that this rank makes no more calls. Takes a bounded time.
    fn leave(&mut self);
}
