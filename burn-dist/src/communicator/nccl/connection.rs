//! An NCCL communicator, guarded: one thread at a time, and none once it is gone.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::device_context::DeviceContext;
use super::foreign::Handle;
use super::nccl_functions::{Config, IN_PROGRESS, NcclFunctions, SUCCESS, UniqueId};
use super::nccl_library::words;

/// What keeps a communicator from its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// NCCL's or CUDA's result, and what they say about it.
    Failed(c_int, String),
    /// The time is over.
    Late,
    /// The communicator was aborted, or is to be.
    GivenUp,
}

/// How long to wait, and what ends the wait before.
#[derive(Clone, Copy)]
pub(super) struct Patience<'a> {
    pub(super) deadline: Instant,
    pub(super) given_up: &'a dyn Fn() -> bool,
}

#[derive(Debug)]
pub(super) struct Connection {
    nccl: Arc<dyn NcclFunctions>,
    context: Arc<DeviceContext>,
    /// `None` once it was destroyed or aborted.
    comm: Mutex<Option<Handle>>,
}

/// Looks often at first, then every millisecond.
struct Pause(u32);

impl Pause {
    fn next(&mut self) {
        self.0 += 1;
        match self.0 {
            0..200 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

impl Connection {
    /// Joins the communicator of `id` as `index` of `size`. No member is waited for longer than `patience` lasts.
    pub(super) fn open(
        nccl: Arc<dyn NcclFunctions>,
        context: Arc<DeviceContext>,
        id: UniqueId,
        (index, size): (usize, usize),
        patience: Patience<'_>,
    ) -> Result<Self, Fault> {
        let mut comm: Handle = 0;
        {
            let _entered = context.enter().map_err(|text| Fault::Failed(-1, text))?;
            let mut config = Config::without_waiting();
            // SAFETY: results go to variables of their kinds, of which NCCL copies the configuration and writes the
            // handle before it returns; the id is the group's.
            let result = unsafe {
                let (size, index) = (size as c_int, index as c_int);
                nccl.comm_init_rank_config(&mut comm, size, id, index, &mut config)
            };
            if !is_good(result) {
                return Err(Fault::Failed(result, words(&*nccl, result, None)));
            }
        }
        let this = Self {
            nccl,
            context,
            comm: Mutex::new(Some(comm)),
        };
        // A dropped one is aborted.
        this.settle(patience).map(|()| this)
    }

    /// The part of the communicator whose members give this color, in the order of their keys. All members of the
    /// whole take part. After a fault the whole must be aborted.
    pub(super) fn split(
        &self,
        (color, key): (usize, usize),
        patience: Patience<'_>,
    ) -> Result<Self, Fault> {
        let mut new: Handle = 0;
        let new = &raw mut new;
        let mut config = Config::without_waiting();
        let (color, key) = (color as c_int, key as c_int);
        let parted = self.call(|nccl, comm| {
            // SAFETY: the communicator is alive under its lock; NCCL copies the configuration before it returns, and
            // writes the handle before it says that it is done, or is aborted below.
            unsafe { nccl.comm_split(comm, color, key, new, &mut config) }
        });
        if let Err(fault) = parted.and_then(|()| self.settle(patience)) {
            self.abort();
            return Err(fault);
        }
        // SAFETY: NCCL is done with it.
        let comm = unsafe { new.read() };
        let this = Self {
            nccl: self.nccl.clone(),
            context: self.context.clone(),
            comm: Mutex::new(Some(comm)),
        };
        this.settle(patience).map(|()| this)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Handle>> {
        self.comm
            .lock()
            .expect("invariant: no panic under this lock")
    }

    /// Calls NCCL, in the device's context and alone in this communicator.
    pub(super) fn call(
        &self,
        f: impl FnOnce(&dyn NcclFunctions, Handle) -> c_int,
    ) -> Result<(), Fault> {
        let comm = self.lock();
        let handle = comm.ok_or(Fault::GivenUp)?;
        let _entered = self
            .context
            .enter()
            .map_err(|text| Fault::Failed(-1, text))?;
        let result = f(&*self.nccl, handle);
        match is_good(result) {
            true => Ok(()),
            false => Err(Fault::Failed(
                result,
                words(&*self.nccl, result, Some(handle)),
            )),
        }
    }

    /// Whether NCCL is done with what it was last called for. On the device that may still be under way.
    pub(super) fn is_settled(&self) -> Result<bool, Fault> {
        let mut state = SUCCESS;
        // SAFETY: the communicator is alive under its lock; the result goes to a variable of that kind.
        self.call(|nccl, comm| unsafe { nccl.comm_get_async_error(comm, &mut state) })?;
        match state {
            SUCCESS => Ok(true),
            IN_PROGRESS => Ok(false),
            failed => {
                let comm = self.lock();
                Err(Fault::Failed(failed, words(&*self.nccl, failed, *comm)))
            }
        }
    }

    /// Waits until NCCL is done with what it was last called for.
    pub(super) fn settle(&self, patience: Patience<'_>) -> Result<(), Fault> {
        let mut pause = Pause(0);
        while !self.is_settled()? {
            if (patience.given_up)() {
                return Err(Fault::GivenUp);
            }
            if Instant::now() >= patience.deadline {
                return Err(Fault::Late);
            }
            pause.next();
        }
        Ok(())
    }

    /// Ends the communicator at once: its work on the device stops, whatever that waits for.
    pub(super) fn abort(&self) {
        let Some(comm) = self.lock().take() else {
            return;
        };
        let Ok(_entered) = self.context.enter() else {
            return;
        };
        // SAFETY: the handle was taken out under the lock, so that nobody uses it beside or after this.
        unsafe { self.nccl.comm_abort(comm) };
    }

    /// Ends the communicator in order, or at once if that takes too long.
    pub(super) fn close(&self, patience: Patience<'_>) {
        // SAFETY: the communicator is alive under its lock.
        let finalized = self.call(|nccl, comm| unsafe { nccl.comm_finalize(comm) });
        if finalized.and_then(|()| self.settle(patience)).is_err() {
            return self.abort();
        }
        let Some(comm) = self.lock().take() else {
            return;
        };
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: as for `abort`; the communicator has been finalized.
            unsafe { self.nccl.comm_destroy(comm) };
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.abort();
    }
}

fn is_good(result: c_int) -> bool {
    matches!(result, SUCCESS | IN_PROGRESS)
}
