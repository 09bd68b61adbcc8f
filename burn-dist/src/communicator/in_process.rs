//! [`InProcessHub`] and [`InProcessCommunicator`]: ranks that are threads of one process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::engine::{Engine, is_an_engine};
use super::transport::{InProcessTransport, Room};
use super::{Call, CommunicatorOptions, HostBuffer, Members, MemoryPool, Traffic, Work};
use crate::error::{DistError, Result};
use crate::flight::FlightRecorder;

/// Where rank threads find each other. Clones are the same hub.
#[derive(Debug, Clone, Default)]
pub struct InProcessHub {
    state: Arc<Mutex<HubState>>,
}

#[derive(Debug, Default)]
struct HubState {
    groups: HashMap<RoomKey, Generations>,
    /// Ranks that make no more groups, with the cause if they failed.
    ended: HashMap<usize, Option<String>>,
}

/// A group is known by its name, its ranks, and how often each member has made it before.
type RoomKey = (String, Vec<usize>);

#[derive(Debug, Default)]
struct Generations {
    /// How many groups of this key each member has entered.
    entered: Vec<usize>,
    /// Rooms that not all members have entered, by generation.
    open: HashMap<usize, (Arc<Room>, usize)>,
}

impl InProcessHub {
    /// A hub without groups.
    pub fn new() -> Self {
        Self::default()
    }

    /// Enters a group. Does not wait for the other members: the first call does. The recorder, if any,
    /// notes every call.
    ///
    /// Members that make a group of the same name and ranks again get a new, independent one.
    pub fn connect(
        &self,
        members: &Members,
        options: CommunicatorOptions,
        recorder: Option<FlightRecorder>,
    ) -> InProcessCommunicator {
        let key = (members.name().to_string(), members.ranks().to_vec());
        let size = members.size();
        let mut state = self
            .state
            .lock()
            .expect("invariant: no panic under this lock");
        let HubState { groups, ended } = &mut *state;
        let group = groups.entry(key).or_default();
        group.entered.resize(size, 0);
        let generation = group.entered[members.index()];
        group.entered[members.index()] += 1;
        let (room, inside) = group
            .open
            .entry(generation)
            .or_insert_with(|| (Room::new(size), 0));
        let room = room.clone();
        *inside += 1;
        for (index, rank) in members.ranks().iter().enumerate() {
            if group.entered[index] <= generation
                && let Some(cause) = ended.get(rank)
            {
                room.end(index, cause.as_deref());
            }
        }
        if *inside == size {
            group.open.remove(&generation);
        }
        let transport = InProcessTransport::new(room, members.index());
        let transport = Box::new(transport);
        InProcessCommunicator(Engine::new(members.clone(), transport, options, recorder))
    }
}

impl InProcessHub {
    /// Notes that a rank makes no more groups, with the cause if it failed: members that wait for it
    /// in a group that it has not entered get an error at once.
    pub fn end(&self, rank: usize, cause: Option<&str>) {
        let mut state = self
            .state
            .lock()
            .expect("invariant: no panic under this lock");
        state.ended.insert(rank, cause.map(str::to_string));
        for ((_, ranks), group) in &state.groups {
            let Some(index) = ranks.iter().position(|&member| member == rank) else {
                continue;
            };
            for (&generation, (room, _)) in &group.open {
                if group.entered[index] <= generation {
                    room.end(index, cause);
                }
            }
        }
    }
}

/// A communicator between threads of one process; a receiver copies straight from the sender's
/// memory. The reference that the others are tested against.
#[derive(Debug)]
pub struct InProcessCommunicator(Engine);

is_an_engine!(InProcessCommunicator);
