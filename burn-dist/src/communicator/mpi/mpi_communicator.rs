//! [`MpiCommunicator`]: ranks that MPI started.

use super::mpi_runtime::MpiRuntime;
use super::mpi_transport::MpiTransport;
use crate::communicator::engine::{Engine, is_an_engine};
use crate::communicator::{
    Call, CommunicatorOptions, HostBuffer, Members, MemoryPool, Traffic, Work,
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

is_an_engine!(MpiCommunicator);
