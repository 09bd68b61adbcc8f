//! What the cross-rank tests share.
#![warn(missing_docs)]

mod communicators;
mod memory_device;
#[cfg_attr(not(feature = "mpi"), path = "without_mpi.rs")]
mod mpi;
mod parameter_bits;

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use burn::tensor::Device;
use burn_dist::communicator::{
    CommunicatorOptions, InProcessHub, Members, RecordedCall, RecordingCommunicator,
};
use burn_dist::{ProcessGroup, Result};

pub use communicators::{Kind, run_communicators, tcp_mesh, under_mpirun};
pub use memory_device::MemoryDevice;
pub use parameter_bits::parameter_bits;

/// No cross-rank test takes longer; one that does is stuck.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// Runs `f` on `n` rank threads with a group of all of them; results in rank order.
///
/// # Panics
/// If a rank panics, or if the ranks do not end before the deadline.
pub fn run_group<T: Send + 'static>(
    n: usize,
    f: impl Fn(ProcessGroup) -> Result<T> + Send + Sync,
) -> Vec<Result<T>> {
    let hub = InProcessHub::new();
    let options = CommunicatorOptions {
        timeout: Duration::from_secs(20),
        ..CommunicatorOptions::default()
    };
    let ranks: Vec<usize> = (0..n).collect();
    run_threads(n, |rank| {
        let members = Members::new("test", &ranks, rank).expect("a valid group");
        let group = ProcessGroup::new(Arc::new(hub.connect(&members, options, None)));
        f(group)
    })
}

/// As [`run_group`], in a group that reaches `device`, whose memory is ordinary memory. The log has what `f` calls
/// since it was last [cleared](RecordingCommunicator::clear).
///
/// # Panics
/// As [`run_group`].
pub fn run_reaching<T: Send + 'static>(
    n: usize,
    device: &Device,
    f: impl Fn(ProcessGroup, &RecordingCommunicator) -> Result<T> + Send + Sync,
) -> Vec<Result<(T, Vec<RecordedCall>)>> {
    run_group(n, |group| {
        let reaching = MemoryDevice::new(group.communicator().clone(), device);
        let log = Arc::new(RecordingCommunicator::new(Arc::new(reaching)));
        let result = f(ProcessGroup::new(log.clone()), &log)?;
        Ok((result, log.calls()))
    })
}

/// Runs `f(rank)` on `n` threads; results in rank order.
///
/// # Panics
/// If a rank panics, or if the ranks do not end before the deadline.
pub fn run_threads<T: Send>(n: usize, f: impl Fn(usize) -> T + Send + Sync) -> Vec<T> {
    let results = with_deadline(|| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..n)
                .map(|rank| {
                    let f = &f;
                    scope.spawn(move || f(rank))
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join())
                .collect::<Vec<_>>()
        })
    });
    results
        .into_iter()
        .map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        .collect()
}

/// Runs `f`; ends the whole test binary if it takes longer than [`DEADLINE`].
fn with_deadline<T>(f: impl FnOnce() -> T) -> T {
    let (done, ended) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        if ended.recv_timeout(DEADLINE) == Err(mpsc::RecvTimeoutError::Timeout) {
            // Scoped threads cannot be left behind: the whole test binary has to end.
            eprintln!("ranks did not end within {DEADLINE:?}");
            std::process::abort();
        }
    });
    let result = f();
    drop(done);
    result
}
