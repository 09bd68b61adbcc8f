//! Without the feature `mpi` no test runs over MPI.

use std::sync::Arc;

use burn_dist::communicator::{Communicator, CommunicatorOptions};

pub(crate) fn run<T: Send>(
    _n: usize,
    _options: CommunicatorOptions,
    _f: impl Fn(Arc<dyn Communicator>) -> T + Send + Sync,
) -> Vec<T> {
    panic!("build the tests with the feature `mpi`")
}
