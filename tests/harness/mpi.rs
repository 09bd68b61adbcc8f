//! Ranks that mpirun started.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use burn_dist::communicator::{
    Communicator, CommunicatorOptions, Members, MpiCommunicator, MpiRuntime,
};

use crate::with_deadline;

static RUNTIME: OnceLock<MpiRuntime> = OnceLock::new();

/// Groups made so far: the same number on all ranks, as all run the same tests in the same order.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// Runs `f` if this process is one of the first `n` ranks.
pub(crate) fn run<T: Send>(
    n: usize,
    options: CommunicatorOptions,
    f: impl Fn(Arc<dyn Communicator>) -> T + Send + Sync,
) -> Vec<T> {
    let start = || MpiRuntime::start().expect("mpirun has started this test");
    let runtime = RUNTIME.get_or_init(start);
    let key = format!("group {}", MADE.fetch_add(1, Ordering::SeqCst));
    if n > runtime.size() || runtime.rank() >= n {
        return Vec::new();
    }
    let ranks: Vec<usize> = (0..n).collect();
    with_deadline(|| {
        let members = Members::new("contract", &ranks, runtime.rank()).expect("a valid group");
        let made = MpiCommunicator::new(runtime, members, &key, options, None);
        let result = f(Arc::new(made.expect("all ranks come")));
        // Tests make groups fail on purpose, on all ranks.
        runtime.forget_failures();
        vec![result]
    })
}
