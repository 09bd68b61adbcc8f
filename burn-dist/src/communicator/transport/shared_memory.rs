//! Processes of one host over shared memory, with TCP beside it to notice who ends.
//!
//! A sender copies into its ring, a receiver out of it, block by block and at the same time. A member
//! that has nothing to do spins for a moment and then sleeps in the kernel; every time it wakes by
//! itself it also looks at the connections.

use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::frame::{Broken, ReceiveFrame, Target};
use super::segment::Segment;
use super::stream::{Body, Receive, Send};
use super::{Fault, Incoming, Outgoing, Patience, TcpTransport, Transport};

/// Looks before a member sleeps: some tens of microseconds where every member has a core, few where
/// members must take turns.
const SPINS_WITH_A_CORE: u32 = 2000;
const SPINS_WITHOUT: u32 = 20;

/// Longest sleep before a look at the connections.
const SLICE: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(in crate::communicator) struct SharedMemoryTransport {
    segment: Segment,
    index: usize,
    spins: u32,
    /// Says abort and leave; its connections carry nothing else.
    control: TcpTransport,
    /// What may come on them, by member.
    watched: Vec<Option<(TcpStream, ReceiveFrame<'static>)>>,
    /// Members that have left or broken off; what they wrote before is still good.
    gone: Vec<Option<Fault>>,
}

impl SharedMemoryTransport {
    pub(super) fn new(
        segment: Segment,
        control: TcpTransport,
        index: usize,
        size: usize,
    ) -> std::io::Result<Self> {
        let mut watched = Vec::with_capacity(size);
        for member in 0..size {
            watched.push(match control.try_clone_stream(member)? {
                Some(stream) => {
                    let frame = ReceiveFrame::new(member, Target::Message(Vec::new()));
                    Some((stream, frame))
                }
                None => None,
            });
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            segment,
            index,
            spins: match size <= cores {
                true => SPINS_WITH_A_CORE,
                false => SPINS_WITHOUT,
            },
            control,
            watched,
            gone: vec![None; size],
        })
    }

    /// Takes note of members that have said something or broken off; an abort is returned.
    fn watch(&mut self) -> Result<(), Fault> {
        for (member, watched) in self.watched.iter_mut().enumerate() {
            let Some((stream, frame)) = watched else {
                continue;
            };
            if self.gone[member].is_some() {
                continue;
            }
            match frame.advance(stream) {
                Ok(_) => {}
                Err(Broken::Fault(fault @ Fault::PeerFailed { .. })) => return Err(fault),
                Err(Broken::Fault(fault)) => self.gone[member] = Some(fault),
                Err(Broken::Connection(detail)) => {
                    self.gone[member] = Some(Fault::Lost {
                        indices: vec![member],
                        detail,
                    });
                }
            }
        }
        Ok(())
    }

    fn drive(
        &mut self,
        sends: &mut [Send<'_>],
        receives: &mut [Receive<'_>],
        patience: Patience<'_>,
    ) -> Result<(), Fault> {
        let mut idle = 0;
        // Set once a member that is waited for is gone: one more look at what it left behind.
        let mut last_look: Option<Fault> = None;
        loop {
            let moved = self.advance(sends, receives)?;
            let mut open = receives.iter().filter(|r| !r.is_done()).map(|r| r.from);
            let mut full = sends.iter().filter(|s| s.done < s.len()).map(|s| s.to);
            let waiting_for: Vec<usize> = open.by_ref().chain(full.by_ref()).collect();
            if waiting_for.is_empty() {
                return Ok(());
            }
            if moved {
                (idle, last_look) = (0, None);
                continue;
            }
            idle += 1;
            if idle < self.spins {
                std::hint::spin_loop();
                continue;
            }
            if let Some(fault) = last_look.take() {
                return Err(fault);
            }
            self.watch()?;
            if patience.cancelled.load(Ordering::Acquire) {
                return Err(Fault::Cancelled);
            }
            last_look = self.fault_of(&waiting_for);
            if last_look.is_some() {
                continue;
            }
            let rest = patience.deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Err(timeout(waiting_for));
            }
            let segment = &self.segment;
            segment.sleep(self.index, rest.min(SLICE), || {
                let can_take =
                    |r: &Receive<'_>| !r.is_done() && !segment.ring(r.from, self.index).is_empty();
                let can_write =
                    |s: &Send<'_>| s.done < s.len() && !segment.ring(self.index, s.to).is_full();
                receives.iter().any(can_take) || sends.iter().any(can_write)
            });
            idle = self.spins.saturating_sub(SPINS_WITHOUT);
        }
    }

    /// Why waiting for these members is pointless, if it is. A broken connection gives the others a
    /// moment: the member that died is to be named, rather than one that ended because of it.
    fn fault_of(&mut self, waiting_for: &[usize]) -> Option<Fault> {
        let fault = waiting_for.iter().find_map(|&m| self.gone[m].clone())?;
        let Fault::Lost { detail, .. } = fault else {
            return Some(fault);
        };
        let until = Instant::now() + super::tcp::GRACE;
        while Instant::now() < until {
            if let Err(said) = self.watch() {
                return Some(said);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let is_lost = |gone: &Option<Fault>| matches!(gone, Some(Fault::Lost { .. }));
        let indices = (0..self.gone.len())
            .filter(|&m| is_lost(&self.gone[m]))
            .collect();
        Some(Fault::Lost { indices, detail })
    }

    /// One block in each direction with each member; whether anything moved.
    fn advance(
        &mut self,
        sends: &mut [Send<'_>],
        receives: &mut [Receive<'_>],
    ) -> Result<bool, Fault> {
        let mut moved = false;
        for send in sends.iter_mut().filter(|s| s.done < s.len()) {
            let ring = self.segment.ring(self.index, send.to);
            let count = send.advance(|bytes| ring.write(bytes));
            if count > 0 {
                self.segment.ring_bell(send.to);
                moved = true;
            }
        }
        for receive in receives.iter_mut().filter(|r| !r.is_done()) {
            let ring = self.segment.ring(receive.from, self.index);
            if receive.advance(|bytes| ring.take(bytes))? > 0 {
                self.segment.ring_bell(receive.from);
                moved = true;
            }
        }
        Ok(moved)
    }
}

fn timeout(mut waiting_for: Vec<usize>) -> Fault {
    waiting_for.sort_unstable();
    waiting_for.dedup();
    Fault::Timeout { waiting_for }
}

impl Transport for SharedMemoryTransport {
    fn exchange(
        &mut self,
        outgoing: &[Outgoing<'_>],
        incoming: &mut [Incoming<'_>],
        patience: Patience<'_>,
    ) -> Result<(), Fault> {
        let mut sends: Vec<Send<'_>> = outgoing
            .iter()
            .map(|outgoing| Send {
                to: outgoing.to,
                head: None,
                body: outgoing.bytes,
                done: 0,
            })
            .collect();
        let mut receives: Vec<Receive<'_>> = incoming
            .iter_mut()
            .map(|incoming| Receive {
                from: incoming.from,
                head: None,
                body: Body::Array(incoming.bytes),
                done: 0,
            })
            .collect();
        self.drive(&mut sends, &mut receives, patience)
    }

    fn exchange_messages(
        &mut self,
        messages: &[Outgoing<'_>],
        patience: Patience<'_>,
    ) -> Result<Vec<Vec<u8>>, Fault> {
        let mut sends: Vec<Send<'_>> = messages
            .iter()
            .map(|message| Send {
                to: message.to,
                head: Some((message.bytes.len() as u32).to_le_bytes()),
                body: message.bytes,
                done: 0,
            })
            .collect();
        let mut receives: Vec<Receive<'_>> = messages
            .iter()
            .map(|message| Receive {
                from: message.to,
                head: Some(([0; 4], 0)),
                body: Body::Message(Vec::new()),
                done: 0,
            })
            .collect();
        self.drive(&mut sends, &mut receives, patience)?;
        Ok(receives
            .into_iter()
            .map(|receive| match receive.body {
                Body::Message(bytes) => bytes,
                Body::Array(_) => unreachable!("invariant: messages only"),
            })
            .collect())
    }

    fn frame_bytes(&self) -> u64 {
        self.control.frame_bytes()
    }

    fn abort(&mut self, cause: &str) {
        self.control.abort(cause);
        self.wake_all();
    }

    fn leave(&mut self) {
        self.control.leave();
        self.wake_all();
    }
}

impl SharedMemoryTransport {
    /// Others look at their connections when they wake.
    fn wake_all(&self) {
        for member in 0..self.gone.len() {
            self.segment.ring_bell(member);
        }
    }
}
