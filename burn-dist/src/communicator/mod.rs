//! Communicators: how ranks exchange contiguous buffers. The contract is in `README.md`.

mod agreement;
mod algorithms;
mod call;
mod chunks;
mod device_call;
mod device_communicator;
mod device_work;
mod engine;
mod execute;
mod failed;
mod header;
mod host_buffer;
mod host_sums;
mod in_process;
mod members;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(feature = "cuda")]
mod nccl;
mod options;
mod peer_connection;
mod pending_device_call;
mod process;
mod recording;
mod reduce;
mod reduce_op;
mod traffic;
mod transport;
mod validate;
mod work;

use std::fmt::Debug;

use algorithms::Reduction;

pub use call::{Call, Operation};
pub use chunks::{
    Chunks, all_gather_elements_sent, all_reduce_elements_sent, reduce_scatter_elements_sent,
};
pub use device_call::DeviceCall;
pub use device_communicator::DeviceCommunicator;
pub use device_work::DeviceWork;
pub use host_buffer::HostBuffer;
pub use in_process::{InProcessCommunicator, InProcessHub};
pub use members::Members;
#[cfg(feature = "mpi")]
pub use mpi::{MpiCommunicator, MpiRuntime};
#[cfg(feature = "cuda")]
pub use nccl::{CudaDriver, NcclCommunicator, NcclLibrary, NcclRuntime};
pub use options::{Algorithm, CommunicatorOptions};
pub use peer_connection::PeerConnection;
pub use pending_device_call::PendingDeviceCall;
pub use process::ProcessCommunicator;
pub use recording::{RecordedCall, RecordingCommunicator};
pub use reduce::reduce_in_rank_order;
pub use reduce_op::ReduceOp;
pub use traffic::Traffic;
pub use transport::MemoryPool;
pub use work::{Completion, Work};

use crate::error::{DistError, Result};

/// Moves buffers between the members of one group.
///
/// All members make the same calls in the same order, from any thread. Calls run in the order in
/// which they were started. A failure is a value: every member gets a [`DistError`], and from then
/// on the communicator refuses every call with [`DistError::Poisoned`].
pub trait Communicator: Debug + Send + Sync {
    /// Who is in the group, and which of them this rank is.
    fn members(&self) -> &Members;

    /// Starts a call and returns at once; the call progresses while the caller computes.
    fn start(&self, call: Call) -> Work;

    /// Makes a call and waits for its end. May run on the caller's thread.
    ///
    /// # Errors
    /// As [`Work::wait`].
    fn run(&self, call: Call) -> Result<HostBuffer> {
        self.start(call).wait()
    }

    /// Where outputs come from and return to; inputs may as well.
    fn pool(&self) -> &MemoryPool;

    /// Bytes moved so far.
    fn traffic(&self) -> Traffic;

    /// The failure that poisoned the group, if any.
    fn failure(&self) -> Option<DistError>;

    /// Ends the group for all members with `cause`; the first cause stays.
    fn abort(&self, cause: DistError);

    /// Calls on arrays in a device's memory, where the members' devices reach each other.
    fn device(&self) -> Option<&dyn DeviceCommunicator> {
        None
    }
}
