//! Transports: how bytes get from one member of a group to another.

mod fault;
mod frame;
mod in_process;
mod negotiation;
mod segment;
mod shared_memory;
mod stream;
mod tcp;

use std::fmt::Debug;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

pub(super) use fault::Fault;
pub(super) use in_process::{InProcessTransport, Room};
pub(super) use negotiation::negotiate;
use shared_memory::SharedMemoryTransport;
pub(super) use tcp::TcpTransport;

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

/// When to stop waiting.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience<'a> {
    pub(super) deadline: Instant,
    /// Set when this rank itself gives the group up.
    pub(super) cancelled: &'a AtomicBool,
}

/// Moves bytes between the members of one group; one thread uses it at a time.
///
/// After an `Err` it is only good for `abort`.
pub(super) trait Transport: Debug + Send {
    /// Sends and receives at the same time, so that no order of members can block. At most one
    /// outgoing and one incoming array per member, of the sizes that its peer expects; both sides
    /// pass over empty ones.
    fn exchange(
        &mut self,
        outgoing: &[Outgoing<'_>],
        incoming: &mut [Incoming<'_>],
        patience: Patience<'_>,
    ) -> Result<(), Fault>;

    /// Sends a short message to each of some members and returns theirs, in the same order.
    fn exchange_messages(
        &mut self,
        messages: &[Outgoing<'_>],
        patience: Patience<'_>,
    ) -> Result<Vec<Vec<u8>>, Fault>;

    /// Bytes of frames sent so far, beside payload and messages.
    fn frame_bytes(&self) -> u64;

    /// Tells all members why the group ends. Takes a bounded time.
    fn abort(&mut self, cause: &str);

    /// Tells all members that this rank makes no more calls. Takes a bounded time.
    fn leave(&mut self);
}
