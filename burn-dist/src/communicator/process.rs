//! [`ProcessCommunicator`]: ranks that are processes.

use std::sync::atomic::AtomicBool;

use super::engine::{Engine, is_an_engine};
use super::transport::{Fault, Patience, StreamTransport, negotiate};
use super::{
    Call, CommunicatorOptions, HostBuffer, Members, MemoryPool, PeerConnection, Traffic, Work,
};
use crate::deadline::deadline;
use crate::error::{DistError, Result};
use crate::flight::FlightRecorder;

/// A communicator between processes: through shared memory between members of one host, through TCP
/// between hosts.
#[derive(Debug)]
pub struct ProcessCommunicator(Engine);

impl ProcessCommunicator {
    /// Over connections by index, to each other member and `None` for this rank itself. They are made
    /// and authenticated before. The recorder, if any, notes every call.
    ///
    /// # Errors
    /// [`DistError::Rendezvous`] if a connection cannot be set up for asynchronous use, or if the
    /// members do not agree about shared memory in time.
    ///
    /// # Panics
    /// If the connections are not one per other member.
    pub fn new(
        members: Members,
        connections: Vec<Option<PeerConnection>>,
        options: CommunicatorOptions,
        recorder: Option<FlightRecorder>,
    ) -> Result<Self> {
        let (index, size) = (members.index(), members.size());
        let fits = connections.len() == size
            && (0..size).all(|i| connections[i].is_none() == (i == index));
        assert!(fits, "invariant: one connection per other member");
        let failure = |problem: String| DistError::Rendezvous {
            rank: members.rank(),
            address: format!("group {}", members.name()),
            problem,
            hint: "a peer may have ended; read the output of the other ranks".into(),
        };
        let parts = connections.into_iter().map(|connection| match connection {
            Some(PeerConnection { control, data }) => (Some(control), Some(data)),
            None => (None, None),
        });
        let (control, data) = parts.unzip();
        let transport = StreamTransport::new(index, control, data);
        let mut transport = transport.map_err(|error| failure(error.to_string()))?;
        if size > 1 {
            let never = AtomicBool::new(false);
            let patience = Patience {
                deadline: deadline(options.startup_timeout),
                cancelled: &never,
            };
            negotiate(&mut transport, index, size, &options, patience)
                .map_err(|fault| failure(explain(fault, &members)))?;
        }
        let transport = Box::new(transport);
        Ok(Self(Engine::new(members, transport, options, recorder)))
    }
}

/// What kept the members from agreeing, by rank.
fn explain(fault: Fault, members: &Members) -> String {
    let ranks = |indices: Vec<usize>| -> Vec<usize> {
        indices.into_iter().map(|i| members.ranks()[i]).collect()
    };
    match fault {
        Fault::Timeout { waiting_for } => {
            format!(
                "rank(s) {:?} did not come to it in time",
                ranks(waiting_for)
            )
        }
        Fault::Lost { indices, detail } => format!("lost rank(s) {:?}: {detail}", ranks(indices)),
        Fault::PeerFailed { index, cause } => {
            format!("rank {} failed: {cause}", members.ranks()[index])
        }
        Fault::Left { index } => format!("rank {} has left", members.ranks()[index]),
        Fault::Garbled { index, detail } => {
            format!(
                "rank {} answers something else ({detail})",
                members.ranks()[index]
            )
        }
        Fault::Disagrees { index } => {
            format!("rank {} does something else", members.ranks()[index])
        }
        Fault::Cancelled => "this rank gave it up".into(),
    }
}

is_an_engine!(ProcessCommunicator);
