//! Frames: a head of nine bytes, kind and length, and a body. Sent and received piece by piece.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;

use super::Fault;
use crate::communicator::header::MAX_HEADER;

/// A frame's head: its kind and the length of what follows.
pub(super) const HEAD: usize = 9;
pub(super) const DATA: u8 = 1;
pub(super) const MESSAGE: u8 = 2;
pub(super) const ABORT: u8 = 3;
pub(super) const LEAVE: u8 = 4;

/// Longest reason that an abort carries.
pub(super) const MAX_CAUSE: usize = 4096;

/// Why a frame did not go on.
pub(super) enum Broken {
    Connection(String),
    Fault(Fault),
}

fn is_wait(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// A frame on its way out.
pub(super) struct SendFrame<'a> {
    pub(super) to: usize,
    head: [u8; HEAD],
    body: &'a [u8],
    pub(super) done: usize,
}

impl<'a> SendFrame<'a> {
    pub(super) fn new(to: usize, kind: u8, body: &'a [u8]) -> Self {
        let mut head = [kind; HEAD];
        head[1..].copy_from_slice(&(body.len() as u64).to_le_bytes());
        Self {
            to,
            head,
            body,
            done: 0,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.done == HEAD + self.body.len()
    }

    /// Writes what the connection takes; whether that was anything.
    pub(super) fn advance(&mut self, mut stream: &TcpStream) -> Result<bool, String> {
        let mut moved = false;
        while !self.is_done() {
            let head = &self.head[self.done.min(HEAD)..];
            let body = &self.body[self.done.saturating_sub(HEAD)..];
            match stream.write_vectored(&[IoSlice::new(head), IoSlice::new(body)]) {
                Ok(0) => return Err("the connection takes no more bytes".into()),
                Ok(count) => {
                    self.done += count;
                    moved = true;
                }
                Err(error) if is_wait(&error) => break,
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(moved)
    }
}

/// Where a received frame goes.
#[derive(Debug)]
pub(super) enum Target<'a> {
    /// An array of known size.
    Array(&'a mut [u8]),
    /// A message of unknown, bounded size.
    Message(Vec<u8>),
}

/// A frame on its way in.
#[derive(Debug)]
pub(super) struct ReceiveFrame<'a> {
    pub(super) from: usize,
    head: [u8; HEAD],
    head_done: usize,
    pub(super) target: Target<'a>,
    body_done: usize,
    /// The reason, once an abort frame has begun.
    cause: Option<Vec<u8>>,
}

impl<'a> ReceiveFrame<'a> {
    pub(super) fn new(from: usize, target: Target<'a>) -> Self {
        Self {
            from,
            head: [0; HEAD],
            head_done: 0,
            target,
            body_done: 0,
            cause: None,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        let body = match &self.target {
            Target::Array(bytes) => bytes.len(),
            Target::Message(bytes) => bytes.len(),
        };
        self.head_done == HEAD && self.cause.is_none() && self.body_done == body
    }

    /// Reads what has come; whether that was anything.
    pub(super) fn advance(&mut self, mut stream: &TcpStream) -> Result<bool, Broken> {
        let mut moved = false;
        while !self.is_done() {
            let rest: &mut [u8] = if self.head_done < HEAD {
                &mut self.head[self.head_done..]
            } else if let Some(cause) = &mut self.cause {
                &mut cause[self.body_done..]
            } else {
                match &mut self.target {
                    Target::Array(bytes) => &mut bytes[self.body_done..],
                    Target::Message(bytes) => &mut bytes[self.body_done..],
                }
            };
            let count = match stream.read(rest) {
                Ok(0) => return Err(Broken::Connection("the connection was closed".into())),
                Ok(count) => count,
                Err(error) if is_wait(&error) => break,
                Err(error) => return Err(Broken::Connection(error.to_string())),
            };
            moved = true;
            if self.head_done < HEAD {
                self.head_done += count;
                if self.head_done == HEAD {
                    self.open_frame()?;
                }
            } else {
                self.body_done += count;
            }
            if let Some(cause) = self.cause.take_if(|cause| cause.len() == self.body_done) {
                return Err(Broken::Fault(Fault::PeerFailed {
                    index: self.from,
                    cause: String::from_utf8_lossy(&cause).into_owned(),
                }));
            }
        }
        Ok(moved)
    }

    /// Looks at a head that has come whole.
    fn open_frame(&mut self) -> Result<(), Broken> {
        let length: [u8; 8] = self.head[1..].try_into().expect("invariant: eight bytes");
        let length = u64::from_le_bytes(length);
        let garbled = |detail: String| {
            Broken::Fault(Fault::Garbled {
                index: self.from,
                detail,
            })
        };
        match (self.head[0], &mut self.target) {
            (LEAVE, _) => return Err(Broken::Fault(Fault::Left { index: self.from })),
            (ABORT, _) if length <= MAX_CAUSE as u64 => {
                self.cause = Some(vec![0; length as usize]);
            }
            (DATA, Target::Array(bytes)) if length == bytes.len() as u64 => {}
            (DATA, Target::Array(bytes)) => {
                let expected = bytes.len();
                return Err(garbled(format!("{length} bytes instead of {expected}")));
            }
            (MESSAGE, Target::Message(bytes)) if length <= MAX_HEADER as u64 => {
                bytes.resize(length as usize, 0);
            }
            (kind, _) => {
                return Err(garbled(format!(
                    "a frame of kind {kind} and {length} bytes"
                )));
            }
        }
        Ok(())
    }
}
