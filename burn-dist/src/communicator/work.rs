//! [`Work`]: a call that was started and may not have ended.

use std::sync::{Arc, Condvar, Mutex};

use super::HostBuffer;
use crate::error::{DistError, Result};

#[derive(Debug, Default)]
struct Slot {
    outcome: Mutex<Option<Result<HostBuffer>>>,
    done: Condvar,
}

/// A started call. [`Work::wait`] consumes it and gives the output or the error.
///
/// Calls of one group run in the order in which they were started. Dropping a `Work` does not
/// cancel the call; its output is lost, its failure still poisons the group.
#[must_use = "a started call has no output before `wait`"]
#[derive(Debug)]
pub struct Work(Arc<Slot>);

/// The other end of a [`Work`]: completes it once. Dropped before, it completes with an error, so
/// that nobody waits for ever.
#[derive(Debug)]
pub struct Completion(Arc<Slot>);

impl Work {
    /// A pending call and the handle that completes it.
    pub fn pending() -> (Self, Completion) {
        let slot = Arc::new(Slot::default());
        (Self(slot.clone()), Completion(slot))
    }

    /// A call that has already ended.
    pub fn ready(outcome: Result<HostBuffer>) -> Self {
        let (work, completion) = Self::pending();
        completion.complete(outcome);
        work
    }

    /// Whether `wait` would return at once.
    pub fn is_done(&self) -> bool {
        self.0
            .outcome
            .lock()
            .expect("invariant: no panic under this lock")
            .is_some()
    }

    /// Waits for the end of the call.
    ///
    /// # Errors
    /// What the communicator met; see [`DistError`](crate::DistError). The communicator's own
    /// timeout bounds the wait.
    pub fn wait(self) -> Result<HostBuffer> {
        let mut outcome = self
            .0
            .outcome
            .lock()
            .expect("invariant: no panic under this lock");
        loop {
            if let Some(outcome) = outcome.take() {
                return outcome;
            }
            outcome = self
                .0
                .done
                .wait(outcome)
                .expect("invariant: no panic under this lock");
        }
    }
}

impl Completion {
    /// Ends the call with its outcome.
    pub fn complete(self, outcome: Result<HostBuffer>) {
        self.put(outcome);
    }

    fn put(&self, outcome: Result<HostBuffer>) {
        let mut slot = self
            .0
            .outcome
            .lock()
            .expect("invariant: no panic under this lock");
        slot.get_or_insert(outcome);
        self.0.done.notify_all();
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        // After `complete` there is an outcome, or it was taken and nobody waits.
        self.put(Err(DistError::config(
            "a started call was given up",
            "the thread that ran it panicked; its message is above",
        )));
    }
}
