//! Processes over TCP: one connection per pair of members, frames, one thread that polls them all.

use std::io::Read;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::frame::{
    ABORT, Broken, DATA, HEAD, LEAVE, MAX_CAUSE, MESSAGE, ReceiveFrame, SendFrame, Target,
};
use super::{Fault, Incoming, Outgoing, Patience, Transport};

/// Socket buffers: large enough to keep both sides busy, small enough to stay in the cache.
const SOCKET_BUFFER: usize = 1 << 20;

/// Longest sleep before a look at the cancel flag.
const SLICE: Duration = Duration::from_millis(100);

/// After a connection broke, the others are watched this long: the member that died is to be named,
/// rather than one that ended because of it.
pub(super) const GRACE: Duration = Duration::from_millis(100);

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

    /// Another handle of a member's connection.
    pub(super) fn try_clone_stream(&self, index: usize) -> std::io::Result<Option<TcpStream>> {
        let peer = self.peers[index].as_ref();
        peer.map(|peer| peer.stream.try_clone()).transpose()
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
