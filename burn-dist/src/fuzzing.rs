//! Entry points for fuzzing: every decoder of bytes that come from another process.
//!
//! Each function takes what another process may send and returns the bytes of memory that the decoded
//! value holds, or `None` if it was refused. A decoder must not panic. A decoded value holds no more
//! than a small multiple of what came, which each function states; what is refused has taken no more
//! than its announced length, and none at all if that is above the longest that is allowed.
//!
//! Compiled for `cargo fuzz` (see `fuzz/` in the root) and for this crate's own tests only.
#![cfg_attr(not(fuzzing), allow(unreachable_pub))]

use std::io::Read;

use crate::communicator::{Operation, PeerConnection};
use crate::world::{StoreClient, StoreServer, World};

#[cfg(test)]
mod tests;

/// Longest message between members.
const MESSAGE: usize = 64 << 10;
/// Longest key of the store, and longest value.
const STORE_KEY: usize = 1 << 10;
const STORE_VALUE: usize = 1 << 20;
/// Longest key of a group.
const GROUP_KEY: usize = 60_000;
/// Longest reason of an abort, its head, and what is taken in at a time.
const CONTROL: usize = 4096 + 5 + 256;

/// The smallest vector of bytes that grows.
const SMALLEST: usize = 8;

/// A connection that brings `rest` in pieces.
#[derive(Debug)]
struct Wire<'a> {
    rest: &'a [u8],
    piece: usize,
    /// Most bytes that a reader asked for at once: it has taken memory for them.
    asked: usize,
}

impl<'a> Wire<'a> {
    /// The length of the pieces is different from input to input, and is the same for the same input.
    fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            piece: 1 + bytes.len() * 7 % 61,
            asked: 0,
        }
    }
}

impl Read for Wire<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.asked = self.asked.max(buffer.len());
        let count = buffer.len().min(self.piece).min(self.rest.len());
        let (now, later) = self.rest.split_at(count);
        buffer[..count].copy_from_slice(now);
        self.rest = later;
        Ok(count)
    }
}

/// The header of a call. It holds less than came; described, each number of eight bytes has up to
/// twenty digits and a comma.
pub fn header(bytes: &[u8]) -> Option<usize> {
    let (held, description) = Operation::fuzz_header(bytes)?;
    assert!(held < bytes.len(), "{held} of {}", bytes.len());
    assert!(description.len() <= 3 * bytes.len() + 200);
    Some(held)
}

/// Words of a control connection. What is kept of an unfinished one is below [`CONTROL`], twice that as
/// vectors grow; a reason in bytes that are no text has three bytes for each.
pub fn control(bytes: &[u8]) -> Option<usize> {
    let (held, farewell) = PeerConnection::fuzz_control(Wire::new(bytes));
    assert!(held <= SMALLEST.max(2 * bytes.len().min(CONTROL)), "{held}");
    let farewell = farewell?;
    assert!(farewell.len() <= SMALLEST + 3 * bytes.len());
    Some(held + farewell.len())
}

/// A message between members, its length before it. It holds what came behind that.
pub fn message(bytes: &[u8]) -> Option<usize> {
    let mut wire = Wire::new(bytes);
    let message = PeerConnection::fuzz_message(&mut wire);
    assert!(wire.asked <= MESSAGE, "{}", wire.asked);
    let message = message?;
    assert_eq!(message[..], bytes[4..4 + message.len()]);
    assert!(message.capacity() <= SMALLEST.max(message.len()));
    Some(message.capacity())
}

/// What the store is asked. Key and value came behind seven bytes.
pub fn store_request(bytes: &[u8]) -> Option<usize> {
    let mut wire = Wire::new(bytes);
    let request = StoreServer::fuzz_request(&mut wire);
    assert!(wire.asked <= STORE_VALUE, "{}", wire.asked);
    let [key, value] = request.ok()?;
    assert!(key.len() <= STORE_KEY);
    let held = key.capacity() + value.capacity();
    assert!(held + 7 <= bytes.len(), "{held} of {}", bytes.len());
    Some(held)
}

/// What the store answers. The value came behind five bytes.
pub fn store_answer(bytes: &[u8]) -> Option<usize> {
    let mut wire = Wire::new(bytes);
    let value = StoreClient::fuzz_answer(&mut wire);
    assert!(wire.asked <= STORE_VALUE, "{}", wire.asked);
    let held = value.ok()?.capacity();
    assert!(held + 5 <= bytes.len(), "{held} of {}", bytes.len());
    Some(held)
}

/// What a peer says after the handshake. The key came behind twelve bytes.
pub fn hello(bytes: &[u8]) -> Option<usize> {
    let mut wire = Wire::new(bytes);
    let hello = World::fuzz_hello(&mut wire);
    assert!(wire.asked <= GROUP_KEY, "{}", wire.asked);
    let held = hello?.0.capacity();
    assert!(held + 12 <= bytes.len(), "{held} of {}", bytes.len());
    Some(held)
}

/// The handshake, over a socket, with a peer that knows the secret and errs: after a first byte that
/// picks the side, byte `i` of the input is XORed with byte `i` of what should be said, so that an input
/// of zeros is a handshake that succeeds, on the accepting side with the hello behind it.
pub fn handshake(bytes: &[u8]) -> Option<usize> {
    let (side, noise) = bytes.split_first()?;
    if side & 1 == 1 {
        return World::fuzz_connect(noise).then_some(0);
    }
    let held = World::fuzz_greet(noise)?.0.capacity();
    assert!(held < bytes.len(), "{held} of {}", bytes.len());
    Some(held)
}

/// Words by which members of a host agree to share memory. They hold two numbers and sixteen bytes.
pub fn negotiation(bytes: &[u8]) -> Option<usize> {
    PeerConnection::fuzz_words(bytes).then_some(0)
}

/// Slurm's list of hosts. The first is a part of it.
pub fn host_list(bytes: &[u8]) -> Option<usize> {
    let list = String::from_utf8_lossy(bytes);
    let host = World::fuzz_first_host(&list)?;
    assert!(host.len() <= list.len(), "{host}");
    Some(host.len())
}

/// Counters of a ring in shared memory: two numbers of eight bytes, and what is then written. Nothing
/// is held.
pub fn ring(bytes: &[u8]) -> Option<usize> {
    let mut pass = PeerConnection::fuzz_ring().ok()?;
    ring_with(&mut pass, bytes)
}

fn ring_with(pass: &mut impl FnMut([u64; 2], &[u8]) -> [usize; 3], bytes: &[u8]) -> Option<usize> {
    let (written, rest) = bytes.split_first_chunk()?;
    let (taken, rest) = rest.split_first_chunk()?;
    let counters = [written, taken].map(|bytes| u64::from_le_bytes(*bytes));
    let [sent, there, most] = pass(counters, rest);
    assert!(sent <= rest.len() && there <= most, "{sent}, {there}");
    Some(0)
}
