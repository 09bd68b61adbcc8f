//! [`Job`]: something to be done over the lanes of a group, in small steps.

use super::Fault;
use super::lane::Lane;

/// What a job waits for from one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wants {
    pub(super) read: bool,
    pub(super) write: bool,
}

/// Something to be done over the lanes, in small steps.
pub(super) trait Job {
    /// Does what can be done without waiting; whether that was anything.
    fn advance(&mut self, lanes: &mut Lanes) -> Result<bool, Fault>;

    fn is_done(&self, lanes: &Lanes) -> bool;

    /// What keeps it from going on.
    fn wants(&self, lanes: &Lanes, peer: usize) -> Wants;

    /// Whether a member is to be named when time is up.
    fn blames(&self, lanes: &Lanes, peer: usize) -> bool {
        waits(self.wants(lanes, peer))
    }
}

/// Lanes by member; none to this member itself.
#[derive(Debug)]
pub(super) struct Lanes {
    pub(super) lanes: Vec<Option<Lane>>,
    /// Members whose bytes are not to be looked at yet.
    held: Vec<bool>,
}

impl Lanes {
    pub(super) fn new(lanes: Vec<Option<Lane>>) -> Self {
        Self {
            held: vec![false; lanes.len()],
            lanes,
        }
    }

    pub(super) fn hold(&mut self, peer: usize, held: bool) {
        self.held[peer] = held;
    }

    pub(super) fn is_held(&self, peer: usize) -> bool {
        self.held[peer]
    }

    pub(super) fn of(&mut self, peer: usize) -> &mut Lane {
        self.lanes[peer]
            .as_mut()
            .expect("invariant: no traffic with oneself")
    }

    pub(super) fn at(&self, peer: usize) -> &Lane {
        self.lanes[peer]
            .as_ref()
            .expect("invariant: no traffic with oneself")
    }

    pub(super) fn peers(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.lanes.len()).filter(|&peer| self.lanes[peer].is_some())
    }
}

pub(super) fn is_connected(lane: &Lane) -> bool {
    matches!(lane, Lane::Connected(_))
}

pub(super) fn waits(wants: Wants) -> bool {
    wants.read || wants.write
}
