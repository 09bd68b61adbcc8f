//! Processes over TCP: one connection per pair of members, frames, one thread that polls them all.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Fault, Incoming, Outgoing, Patience, Transport};
use crate::communicator::header::MAX_HEADER;

/// A frame's head: its kind and the length of what follows.
const HEAD: usize = 9;
const DATA: u8 = 1;
const MESSAGE: u8 = 2;
const ABORT: u8 = 3;
const LEAVE: u8 = 4;

/// Longest reason that an abort carries.
const MAX_CAUSE: usize = 4096;

/// Socket buffers: large enough to keep both sides busy, small enough to stay in the cache.
const SOCKET_BUFFER: usize = 1 << 20;

/// Longest sleep before a look at the cancel flag.
const SLICE: Duration = Duration::from_millis(100);

/// After a connection broke, the others are watched this long: the member that died is to be named,
/// rather than one that ended because of it.
const GRACE: Duration = Duration::from_millis(100);

/// Longest time that saying why takes.
const FAREWELL: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct Peer {
    stream: TcpStream,
    /// A frame was left half sent: nothing more can be said.
    cut: bool,
}

#[derive(Debug)]
pub(in crate::communicator) struct TcpTransport {
    peers: Vec<Option<Peer>>,
    frame_bytes: u64,
}

impl TcpTransport {
    /// Over connections by member index; `None` for this member itself.
    pub(in crate::communicator) fn new(streams: Vec<Option<TcpStream>>) -> std::io::Result<Self> {
        let mut peers = Vec::with_capacity(streams.len());
        for stream in streams {
            peers.push(match stream {
                None => None,
                Some(stream) => {
                    stream.set_nonblocking(true)?;
                    stream.set_nodelay(true)?;
                    rustix::net::sockopt::set_socket_send_buffer_size(&stream, SOCKET_BUFFER)?;
                    rustix::net::sockopt::set_socket_recv_buffer_size(&stream, SOCKET_BUFFER)?;
                    Some(Peer { stream, cut: false })
                }
            });
        }
        Ok(Self {
            peers,
            frame_bytes: 0,
        })
    }

    fn stream(&self, index: usize) -> &TcpStream {
        let peer = self.peers[index].as_ref();
        &peer.expect("invariant: no traffic with oneself").stream
    }

    /// Drives all sends and receives to their end.
    fn drive(
        &mut self,
        sends: &mut [SendFrame<'_>],
        receives: &mut [ReceiveFrame<'_>],
        patience: Patience<'_>,
    ) -> Result<(), Fault> {
        let outcome = self.drive_until(sends, receives, patience);
        for send in sends.iter() {
            self.frame_bytes += send.done.min(HEAD) as u64;
            if send.done > 0
                && !send.is_done()
                && let Some(peer) = &mut self.peers[send.to]
            {
                peer.cut = true;
            }
        }
        outcome
    }

    fn drive_until(
        &self,
        sends: &mut [SendFrame<'_>],
        receives: &mut [ReceiveFrame<'_>],
        patience: Patience<'_>,
    ) -> Result<(), Fault> {
        let mut lost: Vec<(usize, String)> = Vec::new();
        let mut deadline = patience.deadline;
        loop {
            let mut moved = false;
            let mut open = false;
            // Receives first: a reason that a peer gave counts more than a pipe that broke after it.
            for receive in receives.iter_mut().filter(|r| !r.is_done()) {
                if lost.iter().any(|(index, _)| *index == receive.from) {
                    continue;
                }
                match receive.advance(self.stream(receive.from)) {
                    Ok(progress) => moved |= progress,
                    Err(Broken::Fault(fault)) => return Err(fault),
                    Err(Broken::Connection(detail)) => lost.push((receive.from, detail)),
                }
                open |= !receive.is_done();
            }
            for send in sends.iter_mut().filter(|s| !s.is_done()) {
                if lost.iter().any(|(index, _)| *index == send.to) {
                    continue;
                }
                match send.advance(self.stream(send.to)) {
                    Ok(progress) => moved |= progress,
                    // The reason may still lie unread in a receive: it decides.
                    Err(_) if receives.iter().any(|r| r.from == send.to && !r.is_done()) => {}
                    Err(detail) => lost.push((send.to, detail)),
                }
                open |= !send.is_done();
            }
            if !lost.is_empty() && deadline == patience.deadline {
                deadline = deadline.min(Instant::now() + GRACE);
            }
            let now = Instant::now();
            if !open || now >= deadline {
                break;
            }
            if patience.cancelled.load(Ordering::Acquire) {
                return Err(Fault::Cancelled);
            }
            if !moved {
                self.sleep(sends, receives, &lost, (deadline - now).min(SLICE));
            }
        }
        if !lost.is_empty() {
            let mut indices: Vec<usize> = lost.iter().map(|(index, _)| *index).collect();
            indices.sort_unstable();
            indices.dedup();
            let detail = lost.swap_remove(0).1;
            return Err(Fault::Lost { indices, detail });
        }
        let late = receives.iter().filter(|r| !r.is_done()).map(|r| r.from);
        let late = late.chain(sends.iter().filter(|s| !s.is_done()).map(|s| s.to));
        let mut waiting_for: Vec<usize> = late.collect();
        if waiting_for.is_empty() {
            return Ok(());
        }
        waiting_for.sort_unstable();
        waiting_for.dedup();
        Err(Fault::Timeout { waiting_for })
    }

    /// Sleeps until a connection can move, or for `longest`.
    fn sleep(
        &self,
        sends: &[SendFrame<'_>],
        receives: &[ReceiveFrame<'_>],
        lost: &[(usize, String)],
        longest: Duration,
    ) {
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(sends.len() + receives.len());
        let alive = |index: usize| lost.iter().all(|(gone, _)| *gone != index);
        for receive in receives.iter().filter(|r| !r.is_done() && alive(r.from)) {
            fds.push(PollFd::new(self.stream(receive.from), PollFlags::IN));
        }
        for send in sends.iter().filter(|s| !s.is_done() && alive(s.to)) {
            fds.push(PollFd::new(self.stream(send.to), PollFlags::OUT));
        }
        let longest = Timespec {
            tv_sec: longest.as_secs() as i64,
            tv_nsec: longest.subsec_nanos().into(),
        };
        // An interrupted or failed poll is followed by another look at every connection.
        let _ = poll(&mut fds, Some(&longest));
    }
}

enum Broken {
    Connection(String),
    Fault(Fault),
}

fn is_wait(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

struct SendFrame<'a> {
    to: usize,
    head: [u8; HEAD],
    body: &'a [u8],
    done: usize,
}

impl<'a> SendFrame<'a> {
    fn new(to: usize, kind: u8, body: &'a [u8]) -> Self {
        let mut head = [kind; HEAD];
        head[1..].copy_from_slice(&(body.len() as u64).to_le_bytes());
        Self {
            to,
            head,
            body,
            done: 0,
        }
    }

    fn is_done(&self) -> bool {
        self.done == HEAD + self.body.len()
    }

    /// Writes what the connection takes; whether that was anything.
    fn advance(&mut self, mut stream: &TcpStream) -> Result<bool, String> {
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
enum Target<'a> {
    /// An array of known size.
    Array(&'a mut [u8]),
    /// A message of unknown, bounded size.
    Message(Vec<u8>),
}

struct ReceiveFrame<'a> {
    from: usize,
    head: [u8; HEAD],
    head_done: usize,
    target: Target<'a>,
    body_done: usize,
    /// The reason, once an abort frame has begun.
    cause: Option<Vec<u8>>,
}

impl<'a> ReceiveFrame<'a> {
    fn new(from: usize, target: Target<'a>) -> Self {
        Self {
            from,
            head: [0; HEAD],
            head_done: 0,
            target,
            body_done: 0,
            cause: None,
        }
    }

    fn is_done(&self) -> bool {
        let body = match &self.target {
            Target::Array(bytes) => bytes.len(),
            Target::Message(bytes) => bytes.len(),
        };
        self.head_done == HEAD && self.cause.is_none() && self.body_done == body
    }

    /// Reads what has come; whether that was anything.
    fn advance(&mut self, mut stream: &TcpStream) -> Result<bool, Broken> {
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

impl Transport for TcpTransport {
    fn exchange(
        &mut self,
        outgoing: &[Outgoing<'_>],
        incoming: &mut [Incoming<'_>],
        patience: Patience<'_>,
    ) -> Result<(), Fault> {
        let mut sends: Vec<SendFrame<'_>> = outgoing
            .iter()
            .filter(|outgoing| !outgoing.bytes.is_empty())
            .map(|outgoing| SendFrame::new(outgoing.to, DATA, outgoing.bytes))
            .collect();
        let mut receives: Vec<ReceiveFrame<'_>> = incoming
            .iter_mut()
            .filter(|incoming| !incoming.bytes.is_empty())
            .map(|incoming| ReceiveFrame::new(incoming.from, Target::Array(incoming.bytes)))
            .collect();
        self.drive(&mut sends, &mut receives, patience)
    }

    fn exchange_messages(
        &mut self,
        messages: &[Outgoing<'_>],
        patience: Patience<'_>,
    ) -> Result<Vec<Vec<u8>>, Fault> {
        let mut sends: Vec<SendFrame<'_>> = messages
            .iter()
            .map(|message| SendFrame::new(message.to, MESSAGE, message.bytes))
            .collect();
        let mut receives: Vec<ReceiveFrame<'_>> = messages
            .iter()
            .map(|message| ReceiveFrame::new(message.to, Target::Message(Vec::new())))
            .collect();
        self.drive(&mut sends, &mut receives, patience)?;
        Ok(receives
            .into_iter()
            .map(|receive| match receive.target {
                Target::Message(bytes) => bytes,
                Target::Array(_) => unreachable!("invariant: messages only"),
            })
            .collect())
    }

    fn frame_bytes(&self) -> u64 {
        self.frame_bytes
    }

    fn abort(&mut self, cause: &str) {
        let mut end = cause.len().min(MAX_CAUSE);
        while !cause.is_char_boundary(end) {
            end -= 1;
        }
        let cause = &cause.as_bytes()[..end];
        let end = Instant::now() + FAREWELL;
        for (to, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            let mut frame = SendFrame::new(to, ABORT, cause);
            while !peer.cut && !frame.is_done() && Instant::now() < end {
                match frame.advance(&peer.stream) {
                    Ok(true) => {}
                    Ok(false) => std::thread::sleep(Duration::from_millis(1)),
                    Err(_) => break,
                }
            }
            peer.cut = true;
            // A peer that is gone does not mind.
            let _ = peer.stream.shutdown(Shutdown::Write);
        }
    }

    fn leave(&mut self) {
        for (to, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            if !peer.cut {
                // Nine bytes fit into an idle connection's buffer, or the peer is gone.
                let _ = SendFrame::new(to, LEAVE, &[]).advance(&peer.stream);
            }
            let _ = peer.stream.shutdown(Shutdown::Write);
        }
    }
}

impl Drop for TcpTransport {
    /// Closing a connection that holds unread bytes would reset it, and the peer could lose the
    /// reason that was sent before: take in what has come.
    fn drop(&mut self) {
        let mut sink = [0; 4096];
        for peer in self.peers.iter_mut().flatten() {
            for _ in 0..1024 {
                match peer.stream.read(&mut sink) {
                    Ok(count) if count > 0 => {}
                    _ => break,
                }
            }
        }
    }
}
