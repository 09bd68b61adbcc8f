//! [`Engine`]: a [`Communicator`] over any transport. Order, checks, failure.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Instant;

use super::execute::Core;
use super::failed::{Failed, FaultOrError, explain};
use super::transport::Transport;
use super::validate::validate;
use super::{
    Call, Communicator, CommunicatorOptions, Completion, HostBuffer, Members, MemoryPool,
    Operation, Traffic, Work,
};
use crate::deadline::deadline;
use crate::error::{DistError, Result};
use crate::flight::{FlightCall, FlightDetail, FlightRecorder, FlightTicket};

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
    /// And what the recorder calls this group.
    recorder: Option<(FlightRecorder, u64)>,
}

#[derive(Debug)]
struct Job {
    call: Call,
    completion: Completion,
    noted: Option<FlightTicket>,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
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
        recorder: Option<FlightRecorder>,
    ) -> Self {
        let recorder = recorder.map(|recorder| {
            let group = recorder.enter(members.name(), members.ranks());
            (recorder, group)
        });
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
                recorder,
            }),
            worker: Mutex::new(None),
        }
    }

    fn enqueue(&self, queue: &mut Queue, call: Call) -> Work {
        let (work, completion) = Work::pending();
        let noted = self.shared.note(&call, Instant::now());
        queue.jobs.push_back(Job {
            call,
            completion,
            noted,
        });
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
                    let job = queue
                        .jobs
                        .pop_back()
                        .expect("invariant: the job was just queued");
                    job.completion.complete(Err(DistError::config(
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
                && let Some(job) = queue.jobs.pop_front()
            {
                queue.busy = true;
                drop(queue);
                let outcome = self.execute(job.call, job.noted, Instant::now());
                queue = lock(&self.queue);
                queue.busy = false;
                job.completion.complete(outcome);
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

    fn note(&self, call: &Call, now: Instant) -> Option<FlightTicket> {
        let (recorder, group) = self.recorder.as_ref()?;
        Some(recorder.queued(*group, flight_call(call), now))
    }

    /// Runs one call; the queue has given this thread the turn.
    fn execute(&self, call: Call, noted: Option<FlightTicket>, now: Instant) -> Result<HostBuffer> {
        let mut noted = self.recorder.as_ref().zip(noted);
        let outcome = self.attempt(call, &mut noted, now);
        if let Some(((recorder, _), ticket)) = &mut noted {
            recorder.ended(ticket, outcome.is_ok());
        }
        if let Err(error) = &outcome
            && !matches!(
                error,
                DistError::InvalidCall { .. } | DistError::Poisoned { .. }
            )
        {
            self.write_recording(error);
        }
        outcome
    }

    /// Leaves the last calls in a file, for whoever looks for the cause.
    fn write_recording(&self, error: &DistError) {
        let Some((recorder, _)) = &self.recorder else {
            return;
        };
        match recorder.write(&error.to_string(), false) {
            Ok(Some(path)) => tracing::info!("the last calls are in {}", path.display()),
            Ok(None) => {}
            // The call's own error is the one to return.
            Err(error) => tracing::warn!("the last calls could not be written: {error}"),
        }
    }

    fn attempt(
        &self,
        call: Call,
        noted: &mut Option<(&(FlightRecorder, u64), FlightTicket)>,
        now: Instant,
    ) -> Result<HostBuffer> {
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
        if let Some(((recorder, _), ticket)) = noted {
            recorder.began(ticket, core.next_sequence(&call.operation), now);
        }
        let deadline = deadline(self.options.timeout);
        // A panic in here is our own bug; it must not leave peers and later calls waiting.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            core.run(
                call,
                &self.members,
                &self.options,
                deadline,
                &self.cancelled,
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
        lock(&self.traffic).copy_from(core.traffic());
        outcome.map_err(|failed| {
            let error = explain(failed, &self.members, self.options.timeout);
            // What this rank itself gave the group up for counts more than what it then met.
            let first = lock(&self.failure).get_or_insert(error).clone();
            core.abort(&told(&first, &self.members));
            first
        })
    }
}

/// A communicator that is an [`Engine`] over its transport, and nothing else.
macro_rules! is_an_engine {
    ($communicator:ty) => {
        impl $crate::communicator::Communicator for $communicator {
            fn members(&self) -> &Members {
                self.0.members()
            }

            fn start(&self, call: Call) -> Work {
                self.0.start(call)
            }

            fn run(&self, call: Call) -> Result<HostBuffer> {
                self.0.run(call)
            }

            fn pool(&self) -> &MemoryPool {
                self.0.pool()
            }

            fn traffic(&self) -> Traffic {
                self.0.traffic()
            }

            fn failure(&self) -> Option<DistError> {
                self.0.failure()
            }

            fn abort(&self, cause: DistError) {
                self.0.abort(cause);
            }
        }
    };
}

pub(super) use is_an_engine;

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
        let now = Instant::now();
        let noted = shared.note(&call, now);
        let outcome = shared.execute(call, noted, now);
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
        self.shared.write_recording(&first);
        // A call that runs now notices the flag and says why in its own turn.
        self.shared.cancelled.store(true, Ordering::Release);
        if let Ok(mut core) = self.shared.core.try_lock() {
            core.abort(&told(&first, &self.shared.members));
        }
    }
}

/// A failure as peers hear it, who say whose it is themselves.
fn told(failure: &DistError, members: &Members) -> String {
    match failure {
        DistError::Rank { rank, problem } if *rank == members.rank() => problem.clone(),
        failure => failure.to_string(),
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
        if let Some((recorder, group)) = &self.shared.recorder {
            recorder.leave(*group);
        }
    }
}

fn flight_call(call: &Call) -> FlightCall {
    let operation = &call.operation;
    let detail = match operation {
        Operation::AllReduce(op) | Operation::ReduceScatter(op) => {
            FlightDetail::Reduction(op.name())
        }
        Operation::Broadcast { root }
        | Operation::Gather { root }
        | Operation::Scatter { root } => FlightDetail::Root(*root),
        Operation::SendRecv { to, from, .. } => FlightDetail::Partners(*to, *from),
        Operation::AllGather | Operation::AllToAll { .. } | Operation::Barrier => {
            FlightDetail::None
        }
    };
    let (dtype, shape) = (call.input.dtype().name(), call.input.shape());
    FlightCall::new(operation.name(), detail, dtype, shape, call.site)
}
