//! [`RecordingCommunicator`]: what a rank called, in order.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex};
use std::time::Instant;

use burn::tensor::{DType, Device};

use super::{
    Call, Communicator, CommunicatorOptions, DeviceCall, DeviceCommunicator, DeviceWork,
    HostBuffer, Members, MemoryPool, Operation, Traffic, Work,
};
use crate::error::{DistError, Result};

/// One call as it was started.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedCall {
    /// Position among all calls that this recorder saw, from 0.
    pub number: u64,
    /// What was called.
    pub operation: Operation,
    /// Element type of the input.
    pub dtype: DType,
    /// Shape of the input.
    pub shape: Vec<usize>,
    /// Bytes of the input.
    pub bytes: usize,
    /// Whether its arrays are in a device's memory.
    pub on_device: bool,
    /// When.
    pub started: Instant,
}

/// Passes calls on to another communicator and keeps a log of them: for tests, audits and traces.
///
/// The log keeps the last [`RecordingCommunicator::CAPACITY`] calls.
#[derive(Debug)]
pub struct RecordingCommunicator {
    inner: Arc<dyn Communicator>,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    calls: std::collections::VecDeque<RecordedCall>,
    next: u64,
}

impl RecordingCommunicator {
    /// Most calls that the log keeps.
    pub const CAPACITY: usize = 4096;

    /// Records what goes to `inner`.
    pub fn new(inner: Arc<dyn Communicator>) -> Self {
        Self {
            inner,
            log: Mutex::default(),
        }
    }

    /// The recorded calls, oldest first.
    pub fn calls(&self) -> Vec<RecordedCall> {
        self.lock().calls.iter().cloned().collect()
    }

    /// Empties the log; numbers go on.
    pub fn clear(&self) {
        self.lock().calls.clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Log> {
        self.log
            .lock()
            .expect("invariant: no panic under this lock")
    }

    /// Logs a call. A started one is passed on under the same lock, so that the log has the order of
    /// the calls; blocking calls of several threads at once have no order to begin with.
    fn record<R>(&self, call: RecordedCall, pass: impl FnOnce() -> R) -> R {
        let mut log = self.lock();
        if log.calls.len() == Self::CAPACITY {
            log.calls.pop_front();
        }
        let number = log.next;
        log.next += 1;
        log.calls.push_back(RecordedCall { number, ..call });
        pass()
    }

    fn device_below(&self) -> &dyn DeviceCommunicator {
        let device = self.inner.device();
        device.expect("invariant: only given out where there is one")
    }
}

fn on_host(call: &Call) -> RecordedCall {
    RecordedCall {
        number: 0,
        operation: call.operation.clone(),
        dtype: call.input.dtype(),
        shape: call.input.shape().to_vec(),
        bytes: call.input.bytes().len(),
        on_device: false,
        started: Instant::now(),
    }
}

fn on_device(call: &DeviceCall) -> RecordedCall {
    RecordedCall {
        number: 0,
        operation: call.operation.clone(),
        dtype: call.dtype,
        shape: call.shape.clone(),
        bytes: call.shape.iter().product::<usize>() * call.dtype.size(),
        on_device: true,
        started: Instant::now(),
    }
}

impl Communicator for RecordingCommunicator {
    fn members(&self) -> &Members {
        self.inner.members()
    }

    fn start(&self, call: Call) -> Work {
        self.record(on_host(&call), || self.inner.start(call))
    }

    fn run(&self, call: Call) -> Result<HostBuffer> {
        self.record(on_host(&call), || ());
        self.inner.run(call)
    }

    fn pool(&self) -> &MemoryPool {
        self.inner.pool()
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }

    fn failure(&self) -> Option<DistError> {
        self.inner.failure()
    }

    fn abort(&self, cause: DistError) {
        self.inner.abort(cause);
    }
    fn device(&self) -> Option<&dyn DeviceCommunicator> {
        self.inner.device().map(|_| self as &dyn DeviceCommunicator)
    }
}

impl DeviceCommunicator for RecordingCommunicator {
    fn array_device(&self) -> Device {
        self.device_below().array_device()
    }

    /// The part is not recorded.
    fn split(
        &self,
        inner: Arc<dyn Communicator>,
        options: CommunicatorOptions,
    ) -> Result<Arc<dyn Communicator>> {
        self.device_below().split(inner, options)
    }

    unsafe fn start(&self, call: DeviceCall) -> Result<DeviceWork> {
        let device = self.device_below();
        // SAFETY: the caller's.
        self.record(on_device(&call), || unsafe { device.start(call) })
    }
}
