//! Ranks that mpirun started.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use burn_dist::communicator::{
    Communicator, CommunicatorOptions, Members, MpiCommunicator, MpiRuntime,
};

use crate::with_deadline;

/// MPI starts once per process.
static RUNTIME: Mutex<Option<MpiRuntime>> = Mutex::new(None);

/// Groups made so far: the same number on all ranks, as all run the same tests in the same order.
static MADE: AtomicUsize = AtomicUsize::new(0);

fn runtime() -> MutexGuard<'static, Option<MpiRuntime>> {
    RUNTIME
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The process ends by `exit`, which drops no static.
extern "C" fn finalize() {
    // Tests make groups fail on purpose, on all ranks.
    if let Some(runtime) = runtime().take() {
        runtime.finish();
    }
}

fn started() -> MpiRuntime {
    let mut runtime = runtime();
    runtime
        .get_or_insert_with(|| {
            // SAFETY: `finalize` takes and returns nothing, and does not panic.
            unsafe { libc::atexit(finalize) };
            MpiRuntime::start().expect("mpirun has started this test")
        })
        .clone()
}

/// Runs `f` if this process is one of the first `n` ranks.
pub(crate) fn run<T: Send>(
    n: usize,
    options: CommunicatorOptions,
    f: impl Fn(Arc<dyn Communicator>) -> T + Send + Sync,
) -> Vec<T> {
    let runtime = started();
    let key = format!("group {}", MADE.fetch_add(1, Ordering::SeqCst));
    if n > runtime.size() || runtime.rank() >= n {
        return Vec::new();
    }
    let ranks: Vec<usize> = (0..n).collect();
    with_deadline(|| {
        let members = Members::new("contract", &ranks, runtime.rank()).expect("a valid group");
        let made = MpiCommunicator::new(&runtime, members, &key, options, None);
        vec![f(Arc::new(made.expect("all ranks come")))]
    })
}
