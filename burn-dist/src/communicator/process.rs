//! [`ProcessCommunicator`]: ranks that are processes.

use std::net::TcpStream;

use super::engine::Engine;
use super::transport::TcpTransport;
use super::{Call, Communicator, CommunicatorOptions, HostBuffer, Members, Traffic, Work};
use crate::error::{DistError, Result};

/// A communicator between processes, on one host or several, over TCP.
#[derive(Debug)]
pub struct ProcessCommunicator(Engine);

impl ProcessCommunicator {
    /// Over connections by index, one to each other member and `None` for this rank itself. The
    /// connections are made and authenticated before.
    ///
    /// # Errors
    /// [`DistError::Rendezvous`] if a connection cannot be set up for asynchronous use.
    ///
    /// # Panics
    /// If the connections are not one per other member.
    pub fn new(
        members: Members,
        streams: Vec<Option<TcpStream>>,
        options: CommunicatorOptions,
    ) -> Result<Self> {
        let fits = streams.len() == members.size()
            && (0..streams.len()).all(|i| streams[i].is_none() == (i == members.index()));
        assert!(fits, "invariant: one connection per other member");
        let rank = members.rank();
        let transport = TcpTransport::new(streams).map_err(|error| DistError::Rendezvous {
            rank,
            address: format!("group {}", members.name()),
            problem: error.to_string(),
            hint: "the peer may have ended; read the output of the other ranks".into(),
        })?;
        Ok(Self(Engine::new(members, Box::new(transport), options)))
    }
}

impl Communicator for ProcessCommunicator {
    fn members(&self) -> &Members {
        self.0.members()
    }

    fn start(&self, call: Call) -> Work {
        self.0.start(call)
    }

    fn run(&self, call: Call) -> Result<HostBuffer> {
        self.0.run(call)
    }

    fn traffic(&self) -> Traffic {
        self.0.traffic()
    }

    fn failure(&self) -> Option<DistError> {
        self.0.failure()
    }

    fn abort(&self, cause: DistError) {
        self.0.abort(cause);
    }
}
