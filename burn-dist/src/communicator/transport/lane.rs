//! [`Lane`]: a byte stream to and from one member, through shared memory or a connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use super::segment::Segment;

/// Bytes that a connection takes in at once: few system calls, and small enough for the cache.
const STAGE: usize = 256 << 10;

/// Socket buffers: large enough to keep both sides busy, small enough to stay in the cache.
const SOCKET_BUFFER: usize = 1 << 20;

/// Room for the largest element, of which a part may have come.
const ELEMENT: usize = 16;

#[derive(Debug)]
pub(super) enum Lane {
    Shared(SharedLane),
    Connected(ConnectedLane),
}

#[derive(Debug)]
pub(super) struct SharedLane {
    segment: Arc<Segment>,
    /// Positions in the segment.
    own: usize,
    peer: usize,
    /// The peer sleeps on its connections and is to be woken there.
    wake: bool,
}

pub(super) struct ConnectedLane {
    pub(super) stream: TcpStream,
    stage: Box<[u8]>,
    start: usize,
    end: usize,
    /// Why nothing more comes.
    ended: Option<String>,
}

impl std::fmt::Debug for ConnectedLane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the stage: it is long, and holds what users send each other.
        f.debug_struct("ConnectedLane")
            .field("stream", &self.stream)
            .field("staged", &(self.end - self.start))
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl Lane {
    pub(super) fn shared(segment: Arc<Segment>, own: usize, peer: usize) -> Self {
        Self::Shared(SharedLane {
            segment,
            own,
            peer,
            wake: false,
        })
    }

    pub(super) fn connected(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        rustix::net::sockopt::set_socket_send_buffer_size(&stream, SOCKET_BUFFER)?;
        rustix::net::sockopt::set_socket_recv_buffer_size(&stream, SOCKET_BUFFER)?;
        Ok(Self::Connected(ConnectedLane {
            stream,
            stage: vec![0; STAGE].into_boxed_slice(),
            start: 0,
            end: 0,
            ended: None,
        }))
    }

    /// Both sides of a lane begin each parcel with this.
    pub(super) fn begin_write(&mut self) {
        if let Self::Shared(lane) = self {
            lane.segment.ring(lane.own, lane.peer).align_written();
        }
    }

    /// As [`begin_write`](Self::begin_write), on the receiving side.
    pub(super) fn begin_read(&mut self) {
        if let Self::Shared(lane) = self {
            lane.segment.ring(lane.peer, lane.own).align_taken();
        }
    }

    /// Sends what there is room for and returns how much that was. A broken connection takes
    /// nothing: `ended` says so.
    pub(super) fn write(&mut self, bytes: &[u8]) -> usize {
        match self {
            Self::Shared(lane) => {
                let count = lane.segment.ring(lane.own, lane.peer).write(bytes);
                if count > 0 {
                    lane.wake |= lane.segment.ring_bell(lane.peer);
                }
                count
            }
            Self::Connected(lane) => lane.write(bytes),
        }
    }

    /// Takes in what has come, so that `peek` sees it.
    pub(super) fn fill(&mut self) {
        if let Self::Connected(lane) = self {
            lane.fill();
        }
    }

    /// What has come and lies in one piece.
    pub(super) fn peek(&self) -> &[u8] {
        match self {
            Self::Shared(lane) => {
                let ring = lane.segment.ring(lane.peer, lane.own);
                ring.peek()
            }
            Self::Connected(lane) => &lane.stage[lane.start..lane.end],
        }
    }

    /// Gives the first `count` peeked bytes up.
    pub(super) fn consume(&mut self, count: usize) {
        match self {
            Self::Shared(lane) => {
                lane.segment.ring(lane.peer, lane.own).consume(count);
                lane.wake |= lane.segment.ring_bell(lane.peer);
            }
            Self::Connected(lane) => lane.start += count,
        }
    }

    /// Receives into `bytes` what has come, and returns how much that was.
    pub(super) fn read(&mut self, bytes: &mut [u8]) -> usize {
        if let Self::Connected(lane) = self
            && lane.start == lane.end
            && bytes.len() >= STAGE
        {
            return lane.receive(bytes);
        }
        let mut done = 0;
        while done < bytes.len() {
            self.fill();
            let found = self.peek();
            let count = found.len().min(bytes.len() - done);
            if count == 0 {
                break;
            }
            bytes[done..done + count].copy_from_slice(&found[..count]);
            self.consume(count);
            done += count;
        }
        done
    }

    /// Why nothing more comes or goes, for a connection that has ended.
    pub(super) fn ended(&self) -> Option<&str> {
        match self {
            Self::Shared(_) => None,
            Self::Connected(lane) => lane.ended.as_deref(),
        }
    }

    /// Whether `peek`, or else `write`, could find something to do; known without a system call for
    /// shared memory only.
    pub(super) fn is_ready(&self, read: bool, write: bool) -> bool {
        match self {
            Self::Shared(lane) => {
                (read && !lane.segment.ring(lane.peer, lane.own).is_empty())
                    || (write && !lane.segment.ring(lane.own, lane.peer).is_full())
            }
            Self::Connected(_) => false,
        }
    }

    /// Whether the peer is to be woken through its connection; asked once.
    pub(super) fn take_wake(&mut self) -> bool {
        match self {
            Self::Shared(lane) => std::mem::take(&mut lane.wake),
            Self::Connected(_) => false,
        }
    }

    /// No more bytes will be sent.
    pub(super) fn close(&mut self) {
        if let Self::Connected(lane) = self {
            // A peer that is gone does not mind.
            let _ = lane.stream.shutdown(Shutdown::Write);
        }
    }
}

impl ConnectedLane {
    fn write(&mut self, bytes: &[u8]) -> usize {
        if self.ended.is_some() || bytes.is_empty() {
            return 0;
        }
        match self.stream.write(bytes) {
            Ok(count) if count > 0 => count,
            Ok(_) => self.end("the connection takes no more bytes".into()),
            Err(error) => self.failed(&error),
        }
    }

    fn receive(&mut self, bytes: &mut [u8]) -> usize {
        if self.ended.is_some() {
            return 0;
        }
        match self.stream.read(bytes) {
            Ok(count) if count > 0 => count,
            Ok(_) => self.end("the connection was closed".into()),
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&mut self, error: &std::io::Error) -> usize {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted => 0,
            _ => self.end(error.to_string()),
        }
    }

    fn end(&mut self, why: String) -> usize {
        self.ended.get_or_insert(why);
        0
    }

    fn fill(&mut self) {
        if self.end - self.start >= ELEMENT {
            return;
        }
        self.stage.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let mut stage = std::mem::take(&mut self.stage);
        self.end += self.receive(&mut stage[self.end..]);
        self.stage = stage;
    }
}
