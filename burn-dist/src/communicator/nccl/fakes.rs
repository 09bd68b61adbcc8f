//! CUDA's driver as tests play it, and what it shares with their NCCL: they write down what is called, and check that
//! handles are alive.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::cuda_driver::CudaDriver;
use super::cuda_functions::{CudaFunctions, NOT_READY};
use super::fake_nccl::FakeNccl;
use super::foreign::Handle;
use super::nccl_library::NcclLibrary;
use super::nccl_runtime::NcclRuntime;

/// One rank's device and libraries.
#[derive(Debug)]
pub(super) struct Machine {
    log: Mutex<Vec<String>>,
    /// Handles that were given out and not given back, and what they are.
    alive: Mutex<HashMap<Handle, &'static str>>,
    next: AtomicI32,
    pub(super) driver_version: AtomicI32,
    pub(super) init_result: AtomicI32,
    pub(super) device_count: AtomicI32,
    pub(super) nccl_version: AtomicI32,
    /// What tells this device from others.
    pub(super) uuid: AtomicI32,
    /// Events are not reached.
    pub(super) stuck: AtomicBool,
    /// What a communicator says about itself.
    pub(super) state: AtomicI32,
    /// How often it says before that it is in progress.
    pub(super) in_progress: AtomicI32,
    /// The result of `ncclSend`.
    pub(super) send_result: AtomicI32,
    /// A part that a communicator is about to hand out.
    pub(super) splitting: AtomicUsize,
    /// Contexts entered and not left.
    entered: AtomicI32,
    /// What no program may do; the thread that did it may be one that nobody asks.
    misuse: Mutex<Vec<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("invariant: no panic under this lock")
}

#[derive(Debug)]
struct FakeCuda(Arc<Machine>);

impl Machine {
    pub(super) fn new(rank: usize) -> Arc<Self> {
        Arc::new(Self {
            log: Mutex::default(),
            alive: Mutex::default(),
            next: AtomicI32::new(1),
            driver_version: AtomicI32::new(13_000),
            init_result: AtomicI32::new(0),
            device_count: AtomicI32::new(8),
            nccl_version: AtomicI32::new(23_203),
            uuid: AtomicI32::new(rank as i32),
            stuck: AtomicBool::new(false),
            state: AtomicI32::new(0),
            in_progress: AtomicI32::new(0),
            send_result: AtomicI32::new(0),
            splitting: AtomicUsize::new(0),
            entered: AtomicI32::new(0),
            misuse: Mutex::default(),
        })
    }

    pub(super) fn driver(self: &Arc<Self>) -> crate::error::Result<CudaDriver> {
        CudaDriver::new(Arc::new(FakeCuda(self.clone())))
    }

    pub(super) fn library(self: &Arc<Self>) -> crate::error::Result<NcclLibrary> {
        NcclLibrary::new(Arc::new(FakeNccl(self.clone())), "a fake")
    }

    pub(super) fn runtime(self: &Arc<Self>) -> NcclRuntime {
        let (driver, library) = (
            self.driver().expect("invariant: a driver"),
            self.library().expect("invariant: NCCL"),
        );
        NcclRuntime::new(library, &driver, 0, 1).expect("invariant: a device")
    }

    /// What was called since the last time, in order.
    pub(super) fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.log))
    }

    pub(super) fn log(&self) -> Vec<String> {
        lock(&self.log).clone()
    }

    pub(super) fn note(&self, text: impl Into<String>) {
        lock(&self.log).push(text.into());
    }

    pub(super) fn give(&self, kind: &'static str) -> Handle {
        let handle = self.next.fetch_add(1, Ordering::SeqCst) as Handle;
        lock(&self.alive).insert(handle, kind);
        handle
    }

    fn forbid(&self, problem: String) {
        lock(&self.misuse).push(problem);
    }

    pub(super) fn check(&self, handle: Handle, kind: &str) {
        let found = lock(&self.alive).get(&handle).copied();
        if found != Some(kind) {
            self.forbid(format!("{handle} is used as a {kind}, but is {found:?}"));
        }
    }

    pub(super) fn take_back(&self, handle: Handle, kind: &str) {
        let found = lock(&self.alive).remove(&handle);
        if found != Some(kind) {
            self.forbid(format!(
                "{handle} is given back as a {kind}, but is {found:?}"
            ));
        }
    }

    pub(super) fn check_entered(&self) {
        if self.entered.load(Ordering::SeqCst) == 0 {
            self.forbid("no context is current".into());
        }
    }

    /// Everything was given back, and nothing was used that was not there.
    pub(super) fn check_end(&self) {
        let none: Vec<String> = Vec::new();
        assert_eq!(*lock(&self.misuse), none);
        assert_eq!(*lock(&self.alive), HashMap::new());
        assert_eq!(self.entered.load(Ordering::SeqCst), 0, "contexts are left");
    }

    /// A call of NCCL on a stream.
    pub(super) fn submit(&self, comm: Handle, stream: Handle, text: String) -> c_int {
        self.check(comm, "comm");
        self.check(stream, "stream");
        self.check_entered();
        self.note(text);
        0
    }
}

impl CudaFunctions for FakeCuda {
    unsafe fn init(&self, _flags: c_uint) -> c_int {
        self.0.init_result.load(Ordering::SeqCst)
    }

    unsafe fn driver_get_version(&self, version: *mut c_int) -> c_int {
        // SAFETY: the caller's.
        unsafe { *version = self.0.driver_version.load(Ordering::SeqCst) };
        0
    }

    unsafe fn get_error_string(&self, _result: c_int, text: *mut *const c_char) -> c_int {
        // SAFETY: the caller's.
        unsafe { *text = c"words of the driver".as_ptr() };
        0
    }

    unsafe fn device_get_count(&self, count: *mut c_int) -> c_int {
        // SAFETY: the caller's.
        unsafe { *count = self.0.device_count.load(Ordering::SeqCst) };
        0
    }

    unsafe fn device_get(&self, device: *mut c_int, index: c_int) -> c_int {
        // SAFETY: the caller's.
        unsafe { *device = index };
        0
    }

    unsafe fn device_get_name(&self, name: *mut c_char, _length: c_int, _device: c_int) -> c_int {
        // SAFETY: the caller's.
        unsafe { *name = b'F' as c_char };
        0
    }

    unsafe fn device_get_uuid(&self, uuid: *mut [u8; 16], _device: c_int) -> c_int {
        // SAFETY: the caller's.
        unsafe { *uuid = [self.0.uuid.load(Ordering::SeqCst) as u8; 16] };
        0
    }

    unsafe fn primary_context_retain(&self, context: *mut Handle, _device: c_int) -> c_int {
        // SAFETY: the caller's.
        unsafe { *context = self.0.give("context") };
        0
    }

    unsafe fn primary_context_release(&self, _device: c_int) -> c_int {
        let mut alive = lock(&self.0.alive);
        alive.retain(|_, kind| *kind != "context");
        0
    }

    unsafe fn context_push(&self, context: Handle) -> c_int {
        self.0.check(context, "context");
        self.0.entered.fetch_add(1, Ordering::SeqCst);
        0
    }

    unsafe fn context_pop(&self, context: *mut Handle) -> c_int {
        self.0.entered.fetch_sub(1, Ordering::SeqCst);
        let alive = lock(&self.0.alive);
        let found = alive.iter().find(|(_, kind)| **kind == "context");
        // SAFETY: the caller's.
        unsafe { *context = *found.expect("invariant: a context").0 };
        0
    }

    unsafe fn context_record_event(&self, context: Handle, event: Handle) -> c_int {
        self.0.check(context, "context");
        self.0.check(event, "event");
        self.0.note("the device's work is noted");
        0
    }

    unsafe fn context_wait_event(&self, context: Handle, event: Handle) -> c_int {
        self.0.check(context, "context");
        self.0.check(event, "event");
        self.0.note("the device waits");
        0
    }

    unsafe fn stream_create(&self, stream: *mut Handle, flags: c_uint) -> c_int {
        self.0.check_entered();
        assert_eq!(flags, 1, "a stream that does not wait for the default one");
        // SAFETY: the caller's.
        unsafe { *stream = self.0.give("stream") };
        0
    }

    unsafe fn stream_destroy(&self, stream: Handle) -> c_int {
        self.0.take_back(stream, "stream");
        0
    }

    unsafe fn stream_wait_event(&self, stream: Handle, event: Handle, _flags: c_uint) -> c_int {
        self.0.check(stream, "stream");
        self.0.check(event, "event");
        self.0.note("the stream waits");
        0
    }

    unsafe fn event_create(&self, event: *mut Handle, _flags: c_uint) -> c_int {
        self.0.check_entered();
        // SAFETY: the caller's.
        unsafe { *event = self.0.give("event") };
        0
    }

    unsafe fn event_destroy(&self, event: Handle) -> c_int {
        self.0.take_back(event, "event");
        0
    }

    unsafe fn event_record(&self, event: Handle, stream: Handle) -> c_int {
        self.0.check(event, "event");
        self.0.check(stream, "stream");
        self.0.note("the stream's work is noted");
        0
    }

    unsafe fn event_query(&self, event: Handle) -> c_int {
        self.0.check(event, "event");
        match self.0.stuck.load(Ordering::SeqCst) {
            true => NOT_READY,
            false => 0,
        }
    }

    unsafe fn memory_alloc(&self, address: *mut u64, _bytes: usize) -> c_int {
        self.0.check_entered();
        // SAFETY: the caller's.
        unsafe { *address = self.0.give("memory") as u64 };
        0
    }

    unsafe fn memory_free(&self, address: u64) -> c_int {
        self.0.take_back(address as Handle, "memory");
        0
    }
}
