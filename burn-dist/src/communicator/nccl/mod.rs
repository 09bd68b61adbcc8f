//! Arrays in the memory of NVIDIA GPUs, over NCCL. The only place that knows NCCL and CUDA's driver.
//!
//! | file | what |
//! |---|---|
//! | `foreign.rs` | functions of a shared library as a trait, which tests implement too |
//! | `nccl_functions.rs`, `nccl_library.rs` | NCCL |
//! | `cuda_functions.rs`, `cuda_driver.rs` | CUDA's driver |
//! | `device_context.rs` | a device's context, streams and events |
//! | `nccl_runtime.rs` | what a rank needs before it makes groups |
//! | `rendezvous.rs` | how members come to one NCCL communicator |
//! | `connection.rs` | that communicator, guarded |
//! | `carry_out.rs` | a call as NCCL's functions |
//! | `watchdog.rs` | calls that do not end |
//! | `nccl_communicator.rs` | the communicator |
//! | `fakes.rs`, `fake_nccl.rs`, `fake_ranks.rs` | both libraries as tests play them |
//!
//! Both libraries are found when the program runs, so that it starts where there are none. The declarations are
//! this crate's own: those of a binding follow the CUDA version that it was built against, and a result that its
//! enumerations do not know would be undefined behaviour.

mod carry_out;
mod connection;
mod cuda_driver;
mod cuda_functions;
mod device_context;
#[cfg(test)]
mod fake_nccl;
#[cfg(test)]
mod fake_ranks;
#[cfg(test)]
mod fakes;
mod foreign;
mod nccl_communicator;
mod nccl_functions;
mod nccl_library;
mod nccl_runtime;
mod rendezvous;
mod watchdog;

pub use cuda_driver::CudaDriver;
pub use nccl_communicator::NcclCommunicator;
pub use nccl_library::NcclLibrary;
pub use nccl_runtime::NcclRuntime;
