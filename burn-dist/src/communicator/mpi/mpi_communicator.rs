//! [`MpiCommunicator`]: ranks that MPI started.

use super::mpi_runtime::MpiRuntime;
use super::mpi_transport::MpiTransport;
use crate::communicator::engine::Engine;
use crate::communicator::{
    Call, Communicator, CommunicatorOptions, HostBuffer, Members, MemoryPool, Traffic, Work,
};
use crate::error::{DistError, Result};
use crate::flight::FlightRecorder;

/// A communicator between processes that MPI started.
#[derive(Debug)]
pub struct MpiCommunicator(Engine);

impl MpiCommunicator {
    /// A new group of these members. All of them call this, in the same order among the groups that
    /// they share; `key` is the same on all, and names the group in errors. The recorder, if any, notes
    /// every call.
    ///
    /// # Errors
    /// [`DistError::Rendezvous`] naming the members that did not come in time, or one that makes
    /// another group.
    pub fn new(
        runtime: &MpiRuntime,
        members: Members,
        key: &str,
        options: CommunicatorOptions,
        recorder: Option<FlightRecorder>,
    ) -> Result<Self> {
        let communicator = runtime.meet(&members, key, options.startup_timeout)?;
        let hosts = members.ranks().iter().map(|&rank| runtime.host(rank));
        let transport = MpiTransport::new(
            runtime.clone(),
            communicator,
            members.index(),
            hosts.collect(),
        );
        let options = CommunicatorOptions {
            pipelined: false,
            ..options
        };
        let transport = Box::new(transport);
        Ok(Self(Engine::new(members, transport, options, recorder)))
    }
}

impl Communicator for MpiCommunicator {
    fn members(&self) -> &Members {
        self.0.members()
    }

    fn start(&self, call: Call) -> Work {
        self.0.start(call)
    }

    fn run(&self, call: Call) -> Result<HostBuffer> {
        self.0.run(call)
    }

    fn pool(&self) -> &MemoryPool {
        self.0.pool()
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
