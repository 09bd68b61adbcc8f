//! [`WorldOptions`]: timeouts and the algorithm of sums.

use std::time::Duration;

use crate::communicator::{Algorithm, CommunicatorOptions};

/// What a world is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorldOptions {
    /// Longest wait for other ranks to arrive while a world or a group is made.
    pub startup_timeout: Duration,
    /// Longest wait for other ranks within one call.
    pub step_timeout: Duration,
    /// How sums are carried out.
    pub algorithm: Algorithm,
    /// Ranks that share a host exchange through shared memory.
    pub shared_memory: bool,
    /// This rank's host, where the system cannot tell: ranks of different numbers do not share memory.
    pub host: Option<u32>,
    /// Blocks of a sum are added while others travel; `false`: the plain twin, to the same bits.
    pub pipelined: bool,
    /// Ranks compare what they call before data moves; `false` is for measurements.
    pub check_calls: bool,
    /// Ranks that mpirun started talk over MPI, where this crate has the feature `mpi`.
    pub mpi: bool,
    /// This rank's CUDA device, as CUDA counts: groups also move what is in its memory, over NCCL (feature `cuda`).
    /// Each rank has a device of its own; ranks that are threads of one launch take this one and those after it.
    /// `None`: everything goes through host memory.
    pub nccl: Option<usize>,
    /// The last calls are noted, and written to a file when one fails or on SIGUSR1.
    pub flight_recorder: bool,
}

impl Default for WorldOptions {
    /// 60 s to start, 300 s for a step, sums in rank order.
    fn default() -> Self {
        Self {
            startup_timeout: Duration::from_secs(60),
            step_timeout: Duration::from_secs(300),
            algorithm: Algorithm::Direct,
            shared_memory: true,
            host: None,
            pipelined: true,
            check_calls: true,
            mpi: true,
            nccl: None,
            flight_recorder: true,
        }
    }
}

impl WorldOptions {
    /// The options of this world's communicators.
    pub fn communicator(&self) -> CommunicatorOptions {
        CommunicatorOptions {
            algorithm: self.algorithm,
            timeout: self.step_timeout,
            startup_timeout: self.startup_timeout,
            shared_memory: self.shared_memory,
            host: self.host,
            pipelined: self.pipelined,
            check_calls: self.check_calls,
        }
    }
}
