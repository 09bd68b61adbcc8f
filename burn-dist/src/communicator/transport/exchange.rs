//! [`Exchange`]: arrays and messages to and from members at the same time, block by block.

use smallvec::SmallVec;

use super::job::{Job, Lanes, Wants};
use super::lane::Lane;
use super::{Fault, MAX_MESSAGE, MESSAGE_HEAD, Outgoing};
#[cfg(any(test, fuzzing))]
use crate::communicator::PeerConnection;

/// Bytes moved at a time in one direction. Through memory, sender and receiver work on neighbouring
/// blocks, which stay in the cache between them; a connection is asked for as much as it may hold.
fn block(lane: &Lane) -> usize {
    match lane {
        Lane::Shared(_) => 64 << 10,
        Lane::Connected(_) => 1 << 20,
    }
}

/// Up to this many members nothing is allocated.
const FEW: usize = 8;

pub(super) struct Send<'a> {
    pub(super) to: usize,
    head: Option<[u8; MESSAGE_HEAD]>,
    body: &'a [u8],
    done: usize,
}

pub(super) struct Receive<'a> {
    pub(super) from: usize,
    /// For a message: its length, and how much of that has come.
    head: Option<([u8; MESSAGE_HEAD], usize)>,
    body: Body<'a>,
    done: usize,
    begun: bool,
}

enum Body<'a> {
    Array(&'a mut [u8]),
    Message(&'a mut Vec<u8>),
}

pub(super) struct Exchange<'a> {
    pub(super) sends: SmallVec<[Send<'a>; FEW]>,
    pub(super) receives: SmallVec<[Receive<'a>; FEW]>,
    begun: bool,
}

impl<'a> Exchange<'a> {
    /// Arrays of sizes that both sides know, none of them empty.
    pub(super) fn of_arrays<'b: 'a>(
        outgoing: impl Iterator<Item = &'a Outgoing<'b>>,
        incoming: impl Iterator<Item = (usize, &'a mut [u8])>,
    ) -> Self {
        Self {
            sends: outgoing
                .map(|outgoing| Send {
                    to: outgoing.to,
                    head: None,
                    body: outgoing.bytes,
                    done: 0,
                })
                .collect(),
            receives: incoming
                .map(|(from, bytes)| Receive {
                    from,
                    head: None,
                    body: Body::Array(bytes),
                    done: 0,
                    begun: false,
                })
                .collect(),
            begun: false,
        }
    }

    /// A message to each of some members, and one from each of them.
    pub(super) fn of_messages(messages: &[Outgoing<'a>], heard: &'a mut [Vec<u8>]) -> Self {
        Self {
            sends: messages
                .iter()
                .map(|message| Send {
                    to: message.to,
                    head: Some((message.bytes.len() as u32).to_le_bytes()),
                    body: message.bytes,
                    done: 0,
                })
                .collect(),
            receives: messages
                .iter()
                .zip(heard)
                .map(|(message, heard)| Receive::message(message.to, heard))
                .collect(),
            begun: false,
        }
    }
}

impl<'a> Send<'a> {
    /// A message that carries its own head.
    pub(super) fn frame(to: usize, frame: &'a [u8]) -> Self {
        Self {
            to,
            head: None,
            body: frame,
            done: 0,
        }
    }

    fn head_len(&self) -> usize {
        self.head.map_or(0, |head| head.len())
    }

    pub(super) fn is_done(&self) -> bool {
        self.done == self.head_len() + self.body.len()
    }

    pub(super) fn advance(&mut self, lane: &mut Lane) -> bool {
        let before = self.done;
        if let Some(head) = self.head
            && self.done < MESSAGE_HEAD
        {
            self.done += lane.write(&head[self.done..]);
            if self.done < MESSAGE_HEAD {
                return self.done > before;
            }
        }
        let start = self.done - self.head_len();
        let end = self.body.len().min(start + block(lane));
        if start < end {
            self.done += lane.write(&self.body[start..end]);
        }
        self.done > before
    }
}

impl<'a> Receive<'a> {
    pub(super) fn message(from: usize, heard: &'a mut Vec<u8>) -> Self {
        Self {
            from,
            head: Some(([0; MESSAGE_HEAD], 0)),
            body: Body::Message(heard),
            done: 0,
            begun: false,
        }
    }

    /// Takes in a message that is just this and has come in one piece; whether it is. Nothing is copied.
    pub(super) fn take_at_once(&mut self, lane: &mut Lane, frame: &[u8]) -> bool {
        if !std::mem::replace(&mut self.begun, true) {
            lane.begin_read();
        }
        if self.head.is_some_and(|(_, done)| done > 0) {
            return false;
        }
        lane.fill();
        let is_here = lane.peek().starts_with(frame);
        if is_here {
            lane.consume(frame.len());
        }
        is_here
    }

    /// What has come of a message, or of an array.
    pub(super) fn body(&self) -> &[u8] {
        match &self.body {
            Body::Array(bytes) => bytes,
            Body::Message(bytes) => bytes,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        let head = self.head.is_none_or(|(_, done)| done == MESSAGE_HEAD);
        head && self.done == self.body().len()
    }

    pub(super) fn advance(&mut self, lane: &mut Lane) -> Result<bool, Fault> {
        if !std::mem::replace(&mut self.begun, true) {
            lane.begin_read();
        }
        let most = block(lane);
        self.advance_by(most, |bytes| lane.read(bytes))
    }

    /// `read` receives what has come, at most so much, and returns how much that was.
    fn advance_by(
        &mut self,
        most: usize,
        mut read: impl FnMut(&mut [u8]) -> usize,
    ) -> Result<bool, Fault> {
        let mut moved = false;
        if let Some((head, done)) = &mut self.head
            && *done < MESSAGE_HEAD
        {
            let count = read(&mut head[*done..]);
            *done += count;
            if *done < MESSAGE_HEAD {
                return Ok(count > 0);
            }
            moved = true;
            let length = u32::from_le_bytes(*head) as usize;
            if length > MAX_MESSAGE {
                return Err(Fault::Garbled {
                    index: self.from,
                    detail: format!("a message of {length} bytes"),
                });
            }
            if let Body::Message(bytes) = &mut self.body {
                bytes.clear();
                bytes.resize(length, 0);
            }
        }
        let bytes: &mut [u8] = match &mut self.body {
            Body::Array(bytes) => bytes,
            Body::Message(bytes) => bytes,
        };
        let end = bytes.len().min(self.done + most);
        let count = read(&mut bytes[self.done..end]);
        self.done += count;
        Ok(moved || count > 0)
    }
}

/// For `fuzzing.rs`, which cannot name this module.
#[cfg(any(test, fuzzing))]
impl PeerConnection {
    /// Receives a message from a member; `None` if it is refused or ends too early.
    pub(crate) fn fuzz_message(mut from: impl std::io::Read) -> Option<Vec<u8>> {
        let mut message = Vec::new();
        let mut receive = Receive {
            from: 0,
            head: Some(([0; MESSAGE_HEAD], 0)),
            body: Body::Message(&mut message),
            done: 0,
            begun: false,
        };
        let mut read = |bytes: &mut [u8]| from.read(bytes).unwrap_or(0);
        while !receive.is_done() {
            if !receive.advance_by(MAX_MESSAGE, &mut read).ok()? {
                return None;
            }
        }
        Some(message)
    }
}

impl Job for Exchange<'_> {
    fn advance(&mut self, lanes: &mut Lanes) -> Result<bool, Fault> {
        if !std::mem::replace(&mut self.begun, true) {
            self.sends.iter().for_each(|s| lanes.of(s.to).begin_write());
        }
        let mut moved = false;
        for send in self.sends.iter_mut().filter(|s| !s.is_done()) {
            moved |= send.advance(lanes.of(send.to));
        }
        for receive in self.receives.iter_mut().filter(|r| !r.is_done()) {
            if lanes.is_held(receive.from) {
                continue;
            }
            moved |= receive.advance(lanes.of(receive.from))?;
        }
        Ok(moved)
    }

    fn is_done(&self, _: &Lanes) -> bool {
        self.sends.iter().all(Send::is_done) && self.receives.iter().all(Receive::is_done)
    }

    fn wants(&self, _: &Lanes, peer: usize) -> Wants {
        Wants {
            read: self.receives.iter().any(|r| r.from == peer && !r.is_done()),
            write: self.sends.iter().any(|s| s.to == peer && !s.is_done()),
        }
    }
}
