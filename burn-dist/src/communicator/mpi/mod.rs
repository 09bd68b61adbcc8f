//! Ranks that `mpirun` starts, over MPI. The only place that knows MPI.
//!
//! | file | what |
//! |---|---|
//! | `mpi_runtime.rs` | MPI's start and end, and the making of groups |
//! | `mpi_transport.rs` | arrays, messages and last words over one MPI communicator |
//! | `requests.rs` | transfers under way |
//! | `mpi_communicator.rs` | the communicator |
//!
//! Sums are an all-to-all and a local sum, so that they have the rank order of the other communicators;
//! `MPI_Allreduce` promises none. Mismatches, late ranks, ranks that leave or fail are errors as
//! elsewhere. A process that is killed is not: MPI then ends the whole job, and says so itself.

mod mpi_communicator;
mod mpi_runtime;
mod mpi_transport;
mod requests;

pub use mpi_communicator::MpiCommunicator;
pub use mpi_runtime::MpiRuntime;
