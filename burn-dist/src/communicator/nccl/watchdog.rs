//! Calls that were started and may never end, and the thread that looks after them.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::connection::{Connection, Fault, Patience};
use super::device_context::{DeviceContext, Event, Stream};
use super::nccl_functions::REMOTE_ERROR;
use crate::communicator::Communicator;
use crate::deadline::deadline;
use crate::error::DistError;

/// How often the thread looks.
const INTERVAL: Duration = Duration::from_millis(5);

/// Calls that are under way at once: CUDA's queues have an end, behind which a call would wait with the lock held.
const MOST: usize = 128;

/// Longest wait for the other members when a good communicator ends.
const LONGEST_FAREWELL: Duration = Duration::from_secs(10);

/// What a group's handles and its thread share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) inner: Arc<dyn Communicator>,
    pub(super) context: Arc<DeviceContext>,
    pub(super) connection: Connection,
    /// After the connection, which uses it to its end.
    pub(super) stream: Stream,
    pub(super) timeout: Duration,
    under_way: Mutex<UnderWay>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct UnderWay {
    calls: VecDeque<Started>,
    closed: bool,
}

/// A call whose end the device has not reported.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) done: Arc<Event>,
    pub(super) deadline: Instant,
    pub(super) named: Named,
}

/// How errors call a call.
#[derive(Debug, Clone)]
pub(super) struct Named {
    pub(super) sequence: u64,
    pub(super) operation: String,
}

impl Shared {
    pub(super) fn new(
        inner: Arc<dyn Communicator>,
        context: Arc<DeviceContext>,
        connection: Connection,
        stream: Stream,
        timeout: Duration,
    ) -> Self {
        Self {
            inner,
            context,
            connection,
            stream,
            timeout,
            under_way: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        self.under_way
            .lock()
            .expect("invariant: no panic under this lock")
    }

    fn nap<'a>(&self, guard: MutexGuard<'a, UnderWay>) -> MutexGuard<'a, UnderWay> {
        let woken = self.changed.wait_timeout(guard, INTERVAL);
        woken.expect("invariant: no panic under this lock").0
    }

    /// Waits until the queue has room for another call; the thread sees to it that calls end.
    pub(super) fn make_room(&self) {
        let mut under_way = self.lock();
        while under_way.calls.len() >= MOST {
            under_way = self.nap(under_way);
        }
    }

    pub(super) fn look_after(&self, started: Started) {
        self.lock().calls.push_back(started);
        self.changed.notify_all();
    }

    /// Ends the group for all members.
    pub(super) fn fail(&self, cause: DistError) {
        self.inner.abort(cause);
        self.connection.abort();
    }

    /// The error of this rank for what ended a call.
    pub(super) fn explain(&self, fault: Fault, named: &Named) -> DistError {
        let members = self.inner.members();
        let (rank, group) = (members.rank(), members.name().to_string());
        let Named {
            sequence,
            operation,
        } = named.clone();
        let others = members
            .ranks()
            .iter()
            .copied()
            .filter(|&other| other != rank)
            .collect();
        match fault {
            Fault::Late => DistError::Timeout {
                rank,
                group,
                sequence,
                operation,
                waiting_for: others,
                waited: self.timeout,
            },
            Fault::Failed(REMOTE_ERROR, detail) => DistError::PeerLost {
                rank,
                group,
                sequence,
                operation,
                lost: others,
                detail,
            },
            Fault::Failed(_, problem) => DistError::Device {
                rank,
                group,
                sequence,
                operation,
                problem,
            },
            Fault::GivenUp => self.inner.failure().unwrap_or_else(|| DistError::Device {
                rank,
                group,
                sequence,
                operation,
                problem: "this rank gave the group up".into(),
            }),
        }
    }

    /// The thread: until the group closes.
    pub(super) fn watch(&self) {
        let mut under_way = self.lock();
        while !under_way.closed {
            if under_way.calls.is_empty() {
                under_way = self
                    .changed
                    .wait(under_way)
                    .expect("invariant: no panic under this lock");
                continue;
            }
            under_way = self.nap(under_way);
            let fault = self.first_fault(&mut under_way);
            let Some((fault, named)) = fault else {
                continue;
            };
            under_way.calls.clear();
            drop(under_way);
            match fault {
                // Whoever ended the group has said why.
                None => self.connection.abort(),
                Some(fault) => self.fail(self.explain(fault, &named)),
            }
            self.changed.notify_all();
            under_way = self.lock();
        }
    }

    /// Forgets calls that are done; what ends the group, if anything does. `None` for a failure that it knows.
    fn first_fault(&self, under_way: &mut UnderWay) -> Option<(Option<Fault>, Named)> {
        let before = under_way.calls.len();
        while let Some(first) = under_way.calls.front() {
            match first.done.is_reached() {
                Ok(true) => drop(under_way.calls.pop_front()),
                Ok(false) => break,
                Err(problem) => {
                    return Some((Some(Fault::Failed(-1, problem)), first.named.clone()));
                }
            }
        }
        if under_way.calls.len() < before {
            self.changed.notify_all();
        }
        let first = under_way.calls.front()?;
        let named = || first.named.clone();
        if self.inner.failure().is_some() {
            return Some((None, named()));
        }
        match self.connection.is_settled() {
            Err(Fault::GivenUp) => return Some((None, named())),
            Err(fault) => return Some((Some(fault), named())),
            Ok(_) => {}
        }
        (Instant::now() >= first.deadline).then(|| (Some(Fault::Late), named()))
    }

    /// Ends the thread.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let given_up = || self.inner.failure().is_some();
        if given_up() || std::thread::panicking() {
            return self.connection.abort();
        }
        self.connection.close(Patience {
            deadline: deadline(self.timeout.min(LONGEST_FAREWELL)),
            given_up: &given_up,
        });
    }
}

#[cfg(test)]
mod tests;
