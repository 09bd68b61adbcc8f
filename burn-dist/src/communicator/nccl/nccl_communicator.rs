//! [`NcclCommunicator`]: arrays of host memory as before, arrays of device memory over NCCL.
#![allow(unsafe_code)]

use std::fmt;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use burn::tensor::{DType, Device};

use super::carry_out::{carry_out, refusal};
use super::connection::{Connection, Fault, Patience};
use super::device_context::{Event, Stream};
use super::nccl_runtime::NcclRuntime;
use super::rendezvous::{meet, part};
use super::watchdog::{Named, Shared, Started};
use crate::communicator::validate::validate_parts;
use crate::communicator::{
    Call, Communicator, CommunicatorOptions, DeviceCall, DeviceCommunicator, DeviceWork,
    HostBuffer, Members, MemoryPool, Operation, PendingDeviceCall, Traffic, Work,
};
use crate::deadline::deadline;
use crate::error::{DistError, Result};

/// A communicator that leaves host memory to another one, and moves what is in the memory of CUDA devices itself.
///
/// The other one is also how members agree: before each device call they make the same call on an empty array, so
/// that a program that differs between ranks gets the same errors as everywhere, before NCCL waits for ever.
#[derive(Debug)]
pub struct NcclCommunicator {
    shared: Arc<Shared>,
    runtime: NcclRuntime,
    /// Members compare what they call.
    compares: bool,
    /// Calls that were started. Held while one is: members agree in the order in which NCCL is called.
    started: Mutex<u64>,
    /// What device calls move; only payload and, if members do not compare, their number.
    moved: Mutex<Traffic>,
    watchdog: Option<JoinHandle<()>>,
}

impl NcclCommunicator {
    /// Beside `inner`, whose members all call this. Each has a device of its own.
    ///
    /// # Errors
    /// [`DistError::Config`] if members have different versions of NCCL or share a device;
    /// [`DistError::Rendezvous`] if not all of them come in time; else as [`Work::wait`].
    pub fn new(
        runtime: &NcclRuntime,
        inner: Arc<dyn Communicator>,
        options: CommunicatorOptions,
    ) -> Result<Self> {
        // Before the members meet: a rank that fails after it leaves them waiting.
        let stream = stream(runtime)?;
        let connection = meet(runtime, &*inner, &options)?;
        Self::over(runtime, inner, options, connection, stream)
    }

    fn over(
        runtime: &NcclRuntime,
        inner: Arc<dyn Communicator>,
        options: CommunicatorOptions,
        connection: Connection,
        stream: Stream,
    ) -> Result<Self> {
        let name = format!("nccl {}", inner.members().name());
        let (context, timeout) = (runtime.context().clone(), options.timeout);
        let shared = Arc::new(Shared::new(inner, context, connection, stream, timeout));
        let watched = shared.clone();
        let watchdog = std::thread::Builder::new()
            .name(name)
            .spawn(move || watched.watch());
        let watchdog = watchdog.map_err(|error| {
            DistError::config(
                format!("no thread to look after NCCL: {error}"),
                "raise the limit of threads",
            )
        })?;
        let moved = Traffic::new(shared.inner.members().size());
        Ok(Self {
            shared,
            runtime: runtime.clone(),
            compares: options.check_calls,
            started: Mutex::new(0),
            moved: Mutex::new(moved),
            watchdog: Some(watchdog),
        })
    }

    fn refuse_poisoned(&self, operation: &Operation) -> Result<()> {
        let Some(cause) = self.shared.inner.failure() else {
            return Ok(());
        };
        let members = self.members();
        Err(DistError::Poisoned {
            rank: members.rank(),
            group: members.name().into(),
            operation: operation.name().into(),
            cause: Box::new(cause),
        })
    }

    /// The same call on nothing, in host memory: an array without elements that has the shape among its dims.
    fn agree(&self, call: &DeviceCall) -> Result<()> {
        let beside = |dims: &[usize]| -> Vec<usize> {
            std::iter::once(0).chain(dims.iter().copied()).collect()
        };
        let (operation, shape) = match &call.operation {
            Operation::Barrier => (Operation::Barrier, vec![0]),
            Operation::AllToAll { .. } => {
                let mut shape = call.shape.clone();
                shape.insert(1, 0);
                (call.operation.clone(), shape)
            }
            Operation::SendRecv { to, from, receive } => {
                let (to, from, receive) = (*to, *from, beside(receive));
                (
                    Operation::SendRecv { to, from, receive },
                    beside(&call.shape),
                )
            }
            other => (other.clone(), beside(&call.shape)),
        };
        let nothing = HostBuffer::zeros(call.dtype, shape);
        let label = call.host_label();
        let agreed = Call::new(operation, nothing).at(call.site).labelled(label);
        self.shared.inner.run(agreed).map(drop)
    }

    fn count(&self, call: &DeviceCall) {
        let mut moved = self
            .moved
            .lock()
            .expect("invariant: no panic under this lock");
        call.count(self.members(), &mut moved);
        // A call on which members agreed was counted then.
        moved.calls += u64::from(!self.compares);
    }

    /// Submits a call between what the device has to do before and what it will have to do.
    ///
    /// # Safety
    /// As of [`DeviceCommunicator::start`].
    unsafe fn submit(&self, call: &DeviceCall) -> std::result::Result<Event, Fault> {
        let shared = &*self.shared;
        let failed = |text: String| Fault::Failed(-1, text);
        let _entered = shared.context.enter().map_err(failed)?;
        let before = shared.context.so_far().map_err(failed)?;
        shared.stream.wait_for(&before).map_err(failed)?;
        let (size, scratch) = (self.members().size(), shared.context.scratch());
        // SAFETY: the caller's; barriers have one value in the scratch byte and follow each other on one stream.
        unsafe {
            carry_out(
                call,
                size,
                scratch,
                &shared.connection,
                shared.stream.handle,
            )
        }?;
        let given_up = || shared.inner.failure().is_some();
        shared.connection.settle(Patience {
            deadline: deadline(shared.timeout),
            given_up: &given_up,
        })?;
        shared.stream.so_far().map_err(failed)
    }
}

fn stream(runtime: &NcclRuntime) -> Result<Stream> {
    runtime.context().stream().map_err(|problem| {
        let device = runtime.device_index();
        DistError::config(
            format!("CUDA device {device} gives no stream: {problem}"),
            "see what `nvidia-smi` says",
        )
    })
}

/// A call as errors name it.
fn describe(operation: &Operation, dtype: DType, shape: &[usize]) -> String {
    let (name, dtype) = (operation.name(), dtype.name());
    match operation {
        Operation::AllReduce(op) | Operation::ReduceScatter(op) => {
            format!("{name}({}) {dtype} {shape:?} on the device", op.name())
        }
        Operation::Broadcast { root } => {
            format!("{name}(root {root}) {dtype} {shape:?} on the device")
        }
        Operation::Barrier => format!("{name} on the device"),
        _ => format!("{name} {dtype} {shape:?} on the device"),
    }
}

impl DeviceCommunicator for NcclCommunicator {
    fn array_device(&self) -> Device {
        Device::cuda(self.runtime.device_index())
    }

    fn split(
        &self,
        inner: Arc<dyn Communicator>,
        options: CommunicatorOptions,
    ) -> Result<Arc<dyn Communicator>> {
        let stream = stream(&self.runtime)?;
        let shared = &*self.shared;
        // Like a call: between those before and those after it.
        let _order = self
            .started
            .lock()
            .expect("invariant: no panic under this lock");
        if let Some(failure) = shared.inner.failure() {
            return Err(failure);
        }
        let connection = part(&shared.connection, &*shared.inner, &*inner, &options);
        let connection = connection.inspect_err(|cause| {
            // NCCL may still be about to split, and the other members with it.
            shared.fail(cause.clone());
        })?;
        let part = Self::over(&self.runtime, inner, options, connection, stream)?;
        Ok(Arc::new(part))
    }

    unsafe fn start(&self, call: DeviceCall) -> Result<DeviceWork> {
        let members = self.members();
        validate_parts(&call.operation, &call.shape, call.dtype, members)?;
        if let Some((problem, hint)) = refusal(&call.operation, call.dtype) {
            return Err(DistError::InvalidCall {
                rank: members.rank(),
                group: members.name().into(),
                operation: call.operation.name().into(),
                problem,
                hint: hint.into(),
            });
        }
        let mut started = self
            .started
            .lock()
            .expect("invariant: no panic under this lock");
        self.refuse_poisoned(&call.operation)?;
        if self.compares {
            self.agree(&call)?;
        }
        self.shared.make_room();
        self.refuse_poisoned(&call.operation)?;
        let named = Named {
            sequence: *started,
            operation: describe(&call.operation, call.dtype, &call.shape),
        };
        *started += 1;
        // SAFETY: the caller's.
        match unsafe { self.submit(&call) } {
            Ok(done) => {
                self.count(&call);
                let done = Arc::new(done);
                self.shared.look_after(Started {
                    done: done.clone(),
                    deadline: deadline(self.shared.timeout),
                    named,
                });
                let (shared, keep) = (self.shared.clone(), Some(call.keep));
                Ok(DeviceWork::new(Box::new(Pending { shared, done, keep })))
            }
            Err(fault) => {
                let cause = self.shared.explain(fault, &named);
                // Before the call's memory is given back, nothing of it is left on the device.
                self.shared.fail(cause.clone());
                Err(cause)
            }
        }
    }
}

/// A call between its start and its wait.
struct Pending {
    shared: Arc<Shared>,
    done: Arc<Event>,
    /// The call's memory.
    keep: Option<Box<dyn Send>>,
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending")
            .field("done", &self.done)
            .finish_non_exhaustive()
    }
}

impl PendingDeviceCall for Pending {
    fn is_done(&self) -> bool {
        self.done.is_reached().unwrap_or(true)
    }

    fn join(&mut self) -> Result<()> {
        let joined = self.shared.context.wait_for(&self.done);
        if joined.is_err() {
            // What cannot be ordered behind the call may still be in use.
            std::mem::forget(self.keep.take());
        }
        drop(self.keep.take());
        if let Some(failure) = self.shared.inner.failure() {
            return Err(failure);
        }
        joined.map_err(|problem| {
            let named = Named {
                sequence: 0,
                operation: "waiting for a call on the device".into(),
            };
            let cause = self.shared.explain(Fault::Failed(-1, problem), &named);
            self.shared.fail(cause.clone());
            cause
        })
    }
}

impl Communicator for NcclCommunicator {
    fn members(&self) -> &Members {
        self.shared.inner.members()
    }

    fn start(&self, call: Call) -> Work {
        self.shared.inner.start(call)
    }

    fn run(&self, call: Call) -> Result<HostBuffer> {
        self.shared.inner.run(call)
    }

    fn pool(&self) -> &MemoryPool {
        self.shared.inner.pool()
    }

    /// Bytes of host memory, and of device memory as [`DeviceCall::count`] tells them: NCCL does not say what it moves.
    fn traffic(&self) -> Traffic {
        let mut traffic = self.shared.inner.traffic();
        traffic.add(
            &self
                .moved
                .lock()
                .expect("invariant: no panic under this lock"),
        );
        traffic
    }

    fn failure(&self) -> Option<DistError> {
        self.shared.inner.failure()
    }

    fn abort(&self, cause: DistError) {
        self.shared.fail(cause);
    }

    fn device(&self) -> Option<&dyn DeviceCommunicator> {
        Some(self)
    }
}

impl Drop for NcclCommunicator {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(watchdog) = self.watchdog.take() {
            // A thread that panicked has already printed why.
            let _ = watchdog.join();
        }
    }
}

#[cfg(test)]
mod tests;
