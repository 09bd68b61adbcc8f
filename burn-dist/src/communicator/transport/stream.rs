//! Byte streams through rings, block by block.

use super::Fault;
use crate::communicator::header::MAX_HEADER;

/// Bytes copied before they are announced: sender and receiver work on neighbouring blocks, and a
/// block stays in the cache between them.
pub(super) const BLOCK: usize = 64 << 10;

/// Bytes on their way to a member: a length if it is a message, and the body.
pub(super) struct Send<'a> {
    pub(super) to: usize,
    pub(super) head: Option<[u8; 4]>,
    pub(super) body: &'a [u8],
    pub(super) done: usize,
}

impl Send<'_> {
    pub(super) fn len(&self) -> usize {
        self.head.map_or(0, |head| head.len()) + self.body.len()
    }

    pub(super) fn advance(&mut self, write: impl Fn(&[u8]) -> usize) -> usize {
        let before = self.done;
        if let Some(head) = self.head
            && self.done < head.len()
        {
            self.done += write(&head[self.done..]);
            if self.done < head.len() {
                return self.done - before;
            }
        }
        let start = self.done - self.head.map_or(0, |head| head.len());
        let end = self.body.len().min(start + BLOCK);
        self.done += write(&self.body[start..end]);
        self.done - before
    }
}

/// Room for bytes from a member.
pub(super) struct Receive<'a> {
    pub(super) from: usize,
    /// For a message: its length, and how much of that has come.
    pub(super) head: Option<([u8; 4], usize)>,
    pub(super) body: Body<'a>,
    pub(super) done: usize,
}

/// Where received bytes go.
pub(super) enum Body<'a> {
    Array(&'a mut [u8]),
    Message(Vec<u8>),
}

impl Receive<'_> {
    pub(super) fn is_done(&self) -> bool {
        let head = self.head.is_none_or(|(head, done)| done == head.len());
        let len = match &self.body {
            Body::Array(bytes) => bytes.len(),
            Body::Message(bytes) => bytes.len(),
        };
        head && self.done == len
    }

    pub(super) fn advance(&mut self, take: impl Fn(&mut [u8]) -> usize) -> Result<usize, Fault> {
        let mut moved = 0;
        if let Some((head, done)) = &mut self.head
            && *done < head.len()
        {
            moved = take(&mut head[*done..]);
            *done += moved;
            if *done < head.len() {
                return Ok(moved);
            }
            let length = u32::from_le_bytes(*head) as usize;
            if length > MAX_HEADER {
                return Err(Fault::Garbled {
                    index: self.from,
                    detail: format!("a message of {length} bytes"),
                });
            }
            if let Body::Message(bytes) = &mut self.body {
                bytes.resize(length, 0);
            }
        }
        let bytes: &mut [u8] = match &mut self.body {
            Body::Array(bytes) => bytes,
            Body::Message(bytes) => bytes,
        };
        let end = bytes.len().min(self.done + BLOCK);
        let count = take(&mut bytes[self.done..end]);
        self.done += count;
        Ok(moved + count)
    }
}
