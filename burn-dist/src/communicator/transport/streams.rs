//! [`StreamTransport`]: processes, over one lane per pair: shared memory where two members share a
//! host, a connection where they do not. All lanes are driven by the calling thread.
//!
//! A member that has nothing to do spins for a moment, lets others run for a moment, and then sleeps
//! in the kernel: on its bell if it waits for shared memory only, on its connections otherwise.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smallvec::SmallVec;

use super::announced::Announced;
use super::control::Control;
use super::exchange::Exchange;
use super::job::{Job, Lanes, is_connected, waits};
use super::lane::Lane;
use super::neighbour::Neighbour;
use super::pipeline::{Flow, Pipeline};
use super::segment::{AWAKE, ON_BELL, ON_CONNECTIONS, Segment};
use super::{Announcement, Arrays, Fault, Incoming, Outgoing, Patience, Transport, spins};
use crate::communicator::Reduction;
use crate::communicator::chunks::Chunks;

/// What a look at a connection costs, in looks at memory.
const CONNECTION_SPINS: u32 = 16;

/// How often a member then lets others run before it sleeps.
const YIELDS: u32 = 8;

/// Longest sleep before a look at the connections, and before one at the cancel flag.
const BELL_SLICE: Duration = Duration::from_millis(20);
const POLL_SLICE: Duration = Duration::from_millis(100);

/// After a connection broke, the others are watched this long: the member that died is to be named,
/// rather than one that ended because of it.
const GRACE: Duration = Duration::from_millis(100);

/// The shared memory of this member's host, and its position there.
#[derive(Debug)]
pub(super) struct Home {
    pub(super) segment: Arc<Segment>,
    pub(super) own: usize,
}

#[derive(Debug)]
pub(in crate::communicator) struct StreamTransport {
    pub(super) index: usize,
    pub(super) lanes: Lanes,
    pub(super) control: Control,
    pub(super) home: Option<Home>,
    /// A host's number for each member, counted in member order.
    pub(super) hosts: Vec<usize>,
    /// Members whose memory can be read; only if all of a host can read each other.
    pub(super) neighbours: Vec<Option<Neighbour>>,
    spins: u32,
    flows: Vec<Flow>,
    pub(super) words: Vec<Vec<u8>>,
    pub(super) heard: Vec<Vec<u8>>,
    pub(super) blocks: Vec<u8>,
}

impl StreamTransport {
    /// Over two connections to each other member, by index; `None` for this member itself. Every
    /// member is taken to be on a host of its own.
    pub(in crate::communicator) fn new(
        index: usize,
        control: Vec<Option<TcpStream>>,
        data: Vec<Option<TcpStream>>,
    ) -> std::io::Result<Self> {
        let size = control.len();
        let lanes = data.into_iter().map(|s| s.map(Lane::connected).transpose());
        Ok(Self {
            index,
            lanes: Lanes::new(lanes.collect::<std::io::Result<_>>()?),
            control: Control::new(control)?,
            home: None,
            hosts: (0..size).collect(),
            spins: spins(size),
            neighbours: vec![None; size],
            flows: vec![Flow::default(); size],
            words: Vec::new(),
            heard: Vec::new(),
            blocks: Vec::new(),
        })
    }

    fn drive(&mut self, job: &mut impl Job, patience: Patience<'_>) -> Result<(), Fault> {
        let mut idle = 0;
        let has_connections = self.lanes.lanes.iter().flatten();
        let step = match has_connections.into_iter().any(is_connected) {
            true => CONNECTION_SPINS,
            false => 1,
        };
        // Set once a member that is waited for is gone: one more look at what it left behind.
        let mut last_look: Option<Fault> = None;
        loop {
            let moved = job.advance(&mut self.lanes)?;
            self.wake_sleepers();
            if job.is_done(&self.lanes) {
                return Ok(());
            }
            if moved {
                (idle, last_look) = (0, None);
                continue;
            }
            idle += step;
            if idle < self.spins {
                std::hint::spin_loop();
                continue;
            }
            if idle < self.spins + YIELDS * step {
                rustix::thread::sched_yield();
                continue;
            }
            if let Some(fault) = last_look.take() {
                return Err(fault);
            }
            self.control.watch()?;
            if patience.cancelled.load(Ordering::Acquire) {
                return Err(Fault::Cancelled);
            }
            last_look = self.fault_of(job);
            if last_look.is_some() {
                continue;
            }
            let rest = patience.deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                let waiting_for = self.lanes.peers();
                return Err(Fault::Timeout {
                    waiting_for: waiting_for
                        .filter(|&p| job.blames(&self.lanes, p))
                        .collect(),
                });
            }
            self.sleep(job, rest);
            idle = self.spins;
        }
    }

    fn wake_sleepers(&mut self) {
        if self.home.is_none() {
            return;
        }
        for (peer, lane) in self.lanes.lanes.iter_mut().enumerate() {
            if lane.as_mut().is_some_and(Lane::take_wake) {
                self.control.wake(peer);
            }
        }
    }

    /// Why waiting is pointless, if it is.
    fn fault_of(&mut self, job: &impl Job) -> Option<Fault> {
        let fault = self.lanes.peers().find_map(|peer| {
            let wants = job.wants(&self.lanes, peer);
            if !waits(wants) {
                return None;
            }
            let lane = self.lanes.at(peer);
            match (self.control.gone(peer), lane.ended()) {
                // What a member sent before it left may still be under way.
                (Some(Fault::Left { .. }), None) if wants.read && is_connected(lane) => None,
                (Some(fault), _) => Some(fault.clone()),
                (None, Some(detail)) => Some(Fault::Lost {
                    indices: vec![peer],
                    detail: detail.into(),
                }),
                (None, None) => None,
            }
        })?;
        let Fault::Lost {
            mut indices,
            detail,
        } = fault
        else {
            return Some(fault);
        };
        // The others get a moment to say more.
        let until = Instant::now() + GRACE;
        while Instant::now() < until {
            if let Err(said) = self.control.watch() {
                return Some(said);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        indices.extend(self.control.lost());
        indices.sort_unstable();
        indices.dedup();
        Some(Fault::Lost { indices, detail })
    }

    /// Sleeps until something can move, or for a while.
    fn sleep(&self, job: &impl Job, longest: Duration) {
        let mut fds: SmallVec<[PollFd<'_>; 16]> = SmallVec::new();
        let mut waits_for_memory = false;
        for peer in self.lanes.peers() {
            let wants = job.wants(&self.lanes, peer);
            match self.lanes.at(peer) {
                Lane::Shared(_) => waits_for_memory |= waits(wants),
                Lane::Connected(lane) if waits(wants) && self.lanes.at(peer).ended().is_none() => {
                    let mut flags = PollFlags::empty();
                    flags.set(PollFlags::IN, wants.read);
                    flags.set(PollFlags::OUT, wants.write);
                    fds.push(PollFd::new(&lane.stream, flags));
                }
                Lane::Connected(_) => {}
            }
        }
        let ready = || {
            self.lanes.peers().any(|peer| {
                let wants = job.wants(&self.lanes, peer);
                self.lanes.at(peer).is_ready(wants.read, wants.write)
            })
        };
        let home = self.home.as_ref().filter(|_| waits_for_memory);
        if let (Some(home), true) = (home, fds.is_empty()) {
            let before = home.segment.bell_count(home.own);
            home.segment.announce(home.own, ON_BELL);
            if !ready() {
                home.segment
                    .sleep(home.own, before, longest.min(BELL_SLICE));
            }
            home.segment.announce(home.own, AWAKE);
            return;
        }
        for stream in self.control.streams() {
            fds.push(PollFd::new(stream, PollFlags::IN));
        }
        let longest = longest.min(POLL_SLICE);
        let longest = Timespec {
            tv_sec: longest.as_secs() as i64,
            tv_nsec: longest.subsec_nanos().into(),
        };
        if let Some(home) = home {
            home.segment.announce(home.own, ON_CONNECTIONS);
            if ready() {
                return home.segment.announce(home.own, AWAKE);
            }
        }
        // An interrupted or failed poll is followed by another look at everything.
        let _ = poll(&mut fds, Some(&longest));
        if let Some(home) = home {
            home.segment.announce(home.own, AWAKE);
        }
    }

    /// Members of this host look at their connections when they wake.
    fn wake_host(&mut self) {
        for lane in self.lanes.lanes.iter_mut().flatten() {
            lane.close();
        }
        if let Some(home) = &self.home {
            let members = self.hosts.iter();
            let count = members.filter(|&&h| h == self.hosts[self.index]).count();
            for member in 0..count {
                // Those that sleep on their connections are woken by what is said there.
                let _ = home.segment.ring_bell(member);
            }
        }
    }
}

impl Transport for StreamTransport {
    fn exchange(
        &mut self,
        announcement: Option<Announcement<'_>>,
        outgoing: &[Outgoing<'_>],
        incoming: &mut [Incoming<'_>],
        patience: Patience<'_>,
    ) -> Result<(), Fault> {
        let announcement = self.exchange_by_reading(announcement, outgoing, incoming, patience)?;
        let sent = outgoing
            .iter()
            .filter(|o| !o.bytes.is_empty() && !self.reads(o.to, o.bytes.len()));
        let received = incoming
            .iter_mut()
            .filter(|i| !i.bytes.is_empty() && !self.reads(i.from, i.bytes.len()))
            .map(|incoming| (incoming.from, &mut *incoming.bytes));
        let mut job = Exchange::of_arrays(sent, received);
        match announcement {
            None => self.drive(&mut job, patience),
            Some(words) => self.drive(&mut Announced::new(words, self.index, job), patience),
        }
    }

    fn exchange_messages(
        &mut self,
        messages: &[Outgoing<'_>],
        heard: &mut [Vec<u8>],
        patience: Patience<'_>,
    ) -> Result<(), Fault> {
        self.drive(&mut Exchange::of_messages(messages, heard), patience)
    }

    fn reduce(
        &mut self,
        announcement: Option<Announcement<'_>>,
        reduction: Reduction,
        arrays: Arrays<'_>,
        patience: Patience<'_>,
    ) -> Result<(), Fault> {
        if self.reads_all(arrays.input().len()) {
            return self.reduce_by_reading(announcement, reduction, arrays, patience);
        }
        let mut flows = std::mem::take(&mut self.flows);
        flows.fill(Flow::default());
        let size = flows.len();
        let elements = arrays.input().len() / reduction.dtype.size();
        let mut job = Pipeline {
            index: self.index,
            size,
            reduction,
            arrays,
            chunks: Chunks::new(elements, size),
            reduced: 0,
            flows: &mut flows,
        };
        let outcome = match announcement {
            None => self.drive(&mut job, patience),
            Some(words) => self.drive(&mut Announced::new(words, self.index, job), patience),
        };
        self.flows = flows;
        outcome
    }

    fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    fn abort(&mut self, cause: &str) {
        self.control.abort(cause);
        self.wake_host();
    }

    fn leave(&mut self) {
        self.control.leave();
        self.wake_host();
    }
}
