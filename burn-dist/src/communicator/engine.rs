//! [`Engine`]: a [`Communicator`] over any transport. Order, checks, failure.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Instant;

use super::execute::{Core, Failed, validate};
use super::transport::{Fault, Transport};
use super::{
    Call, Communicator, CommunicatorOptions, Completion, HostBuffer, Members, MemoryPool, Traffic,
    Work,
};
use crate::error::{DistError, Result};

/// A communicator over a transport.
///
/// Calls run one at a time, in the order in which they were started: on the caller's thread when
/// nothing is queued, else on one worker thread, which is spawned by the first `start`.
#[derive(Debug)]
pub(super) struct Engine {
    shared: Arc<Shared>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    members: Members,
    options: CommunicatorOptions,
    queue: Mutex<Queue>,
    /// The queue changed: a job came, a call ended, or the communicator is closing.
    changed: Condvar,
    core: Mutex<Core>,
    traffic: Mutex<Traffic>,
    failure: Mutex<Option<DistError>>,
    cancelled: AtomicBool,
    pool: MemoryPool,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<(Call, Completion)>,
    /// A call is running.
    busy: bool,
    closed: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("invariant: no panic under this lock")
}

impl Engine {
    pub(super) fn new(
        members: Members,
        transport: Box<dyn Transport>,
        options: CommunicatorOptions,
    ) -> Self {
        let size = members.size();
        let pool = MemoryPool::new();
        let core = Core::new(transport, members.index(), size, pool.clone());
        Self {
            shared: Arc::new(Shared {
                core: Mutex::new(core),
                traffic: Mutex::new(Traffic::new(size)),
                members,
                options,
                queue: Mutex::new(Queue::default()),
                changed: Condvar::new(),
                failure: Mutex::new(None),
                cancelled: AtomicBool::new(false),
                pool,
            }),
            worker: Mutex::new(None),
        }
    }

    fn enqueue(&self, queue: &mut Queue, call: Call) -> Work {
        let (work, completion) = Work::pending();
        queue.jobs.push_back((call, completion));
        let mut worker = lock(&self.worker);
        if worker.is_none() {
            let shared = self.shared.clone();
            let name = format!("group {}", self.shared.members.name());
            let spawned = std::thread::Builder::new()
                .name(name)
                .spawn(move || shared.serve());
            match spawned {
                Ok(handle) => *worker = Some(handle),
                Err(error) => {
                    let (_, completion) = queue
                        .jobs
                        .pop_back()
                        .expect("invariant: the job was just queued");
                    completion.complete(Err(DistError::config(
                        format!("no thread for asynchronous calls: {error}"),
                        "raise the limit of threads",
                    )));
                }
            }
        }
        self.shared.changed.notify_all();
        work
    }
}

impl Shared {
    /// The worker's loop: runs queued calls until the communicator closes and nothing is left.
    fn serve(&self) {
        let mut queue = lock(&self.queue);
        loop {
            if !queue.busy
                && let Some((call, completion)) = queue.jobs.pop_front()
            {
                queue.busy = true;
                drop(queue);
                let outcome = self.execute(call);
                queue = lock(&self.queue);
                queue.busy = false;
                completion.complete(outcome);
                self.changed.notify_all();
                continue;
            }
            if queue.closed && queue.jobs.is_empty() {
                return;
            }
            queue = self
                .changed
                .wait(queue)
                .expect("invariant: no panic under this lock");
        }
    }

    /// Runs one call; the queue has given this thread the turn.
    fn execute(&self, call: Call) -> Result<HostBuffer> {
        let name = call.operation.name();
        let failure = lock(&self.failure).clone();
        if let Some(cause) = failure {
            // An `abort` that met a call at its very end has not told the peers yet.
            lock(&self.core).abort(&cause.to_string());
            return Err(DistError::Poisoned {
                rank: self.members.rank(),
                group: self.members.name().into(),
                operation: name.into(),
                cause: Box::new(cause),
            });
        }
        validate(&call, &self.members)?;
        let mut core = lock(&self.core);
        let mut traffic = lock(&self.traffic).clone();
        let deadline = Instant::now() + self.options.timeout;
        // A panic in here is our own bug; it must not leave peers and later calls waiting.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            core.run(
                call,
                &self.members,
                &self.options,
                deadline,
                &self.cancelled,
                &mut traffic,
            )
        }));
        let outcome = outcome.unwrap_or_else(|_| {
            Err(Failed {
                fault: FaultOrError::Error(Box::new(DistError::Rank {
                    rank: self.members.rank(),
                    problem: format!("{name} panicked; the message is above"),
                })),
                sequence: 0,
                operation: name.into(),
            })
        });
        *lock(&self.traffic) = traffic;
        outcome.map_err(|failed| {
            let error = self.describe(failed.fault, failed.sequence, &failed.operation);
            // What this rank itself gave the group up for counts more than what it then met.
            let first = lock(&self.failure).get_or_insert(error).clone();
            core.abort(&first.to_string());
            first
        })
    }

    fn describe(&self, fault: FaultOrError, sequence: u64, operation: &str) -> DistError {
        let fault = match fault {
            FaultOrError::Error(error) => return *error,
            FaultOrError::Fault(fault) => fault,
        };
        let ranks = self.members.ranks();
        let global = |indices: Vec<usize>| indices.into_iter().map(|i| ranks[i]).collect();
        let (rank, group) = (self.members.rank(), self.members.name().to_string());
        let operation = operation.to_string();
        let lost = |indices: Vec<usize>, detail: String| DistError::PeerLost {
            rank,
            group: group.clone(),
            sequence,
            operation: operation.clone(),
            lost: global(indices),
            detail,
        };
        match fault {
            Fault::Timeout { waiting_for } => DistError::Timeout {
                rank,
                group,
                sequence,
                operation,
                waiting_for: global(waiting_for),
                waited: self.options.timeout,
            },
            Fault::Lost { indices, detail } => lost(indices, detail),
            Fault::Left { index } => lost(
                vec![index],
                "it made its last call and left; ranks with unequal numbers of inputs need join, \
                 padding or dropping"
                    .into(),
            ),
            Fault::Garbled { index, detail } => lost(
                vec![index],
                format!("it does not follow the protocol ({detail})"),
            ),
            Fault::Cancelled => lost(
                vec![self.members.index()],
                "this rank gave the group up".into(),
            ),
            Fault::PeerFailed { index, cause } => DistError::PeerFailed {
                rank,
                group,
                sequence,
                operation,
                peer: ranks[index],
                cause,
            },
        }
    }
}

/// What ended a call.
#[derive(Debug)]
pub(super) enum FaultOrError {
    Fault(Fault),
    Error(Box<DistError>),
}

impl From<Fault> for FaultOrError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl Communicator for Engine {
    fn members(&self) -> &Members {
        &self.shared.members
    }

    fn start(&self, call: Call) -> Work {
        // Alone there is nothing to wait for, and no reason for a thread.
        if self.shared.members.size() == 1 {
            return Work::ready(self.run(call));
        }
        let mut queue = lock(&self.shared.queue);
        self.enqueue(&mut queue, call)
    }

    fn run(&self, call: Call) -> Result<HostBuffer> {
        let shared = &self.shared;
        let mut queue = lock(&shared.queue);
        if queue.busy || !queue.jobs.is_empty() {
            let work = self.enqueue(&mut queue, call);
            drop(queue);
            return work.wait();
        }
        queue.busy = true;
        drop(queue);
        let outcome = shared.execute(call);
        lock(&shared.queue).busy = false;
        shared.changed.notify_all();
        outcome
    }

    fn traffic(&self) -> Traffic {
        lock(&self.shared.traffic).clone()
    }

    fn pool(&self) -> &MemoryPool {
        &self.shared.pool
    }

    fn failure(&self) -> Option<DistError> {
        lock(&self.shared.failure).clone()
    }

    fn abort(&self, cause: DistError) {
        let first = lock(&self.shared.failure).get_or_insert(cause).clone();
        // A call that runs now notices the flag and says why in its own turn.
        self.shared.cancelled.store(true, Ordering::Release);
        if let Ok(mut core) = self.shared.core.try_lock() {
            core.abort(&first.to_string());
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.abort(DistError::Rank {
                rank: self.shared.members.rank(),
                problem: "it panicked; its own output says where".into(),
            });
        }
        lock(&self.shared.queue).closed = true;
        self.shared.changed.notify_all();
        if let Some(worker) = lock(&self.worker).take() {
            // A worker that panicked has already printed why.
            let _ = worker.join();
        }
        let mut core = lock(&self.shared.core);
        if let Some(cause) = self.failure() {
            core.abort(&cause.to_string());
        }
        core.leave();
    }
}
