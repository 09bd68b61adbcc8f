//! A device's context, and the streams and events in it.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::marker::PhantomData;
use std::sync::Arc;

use super::cuda_driver::{CudaDriver, words};
use super::cuda_functions::{CudaFunctions, NON_BLOCKING, NOT_READY, SUCCESS, WITHOUT_TIMING};
use super::foreign::Handle;

/// What CUDA said.
pub(super) type Outcome<T> = std::result::Result<T, String>;

/// The primary context of a device: the one that Burn's CUDA backend works in.
#[derive(Debug)]
pub(super) struct DeviceContext {
    cuda: Arc<dyn CudaFunctions>,
    device: c_int,
    context: Handle,
    /// A few bytes for calls without arrays.
    scratch: u64,
}

/// The context is this thread's current one until this is dropped.
pub(super) struct Entered<'a>(&'a DeviceContext, PhantomData<*mut ()>);

/// A queue of a device's work.
#[derive(Debug)]
pub(super) struct Stream {
    context: Arc<DeviceContext>,
    pub(super) handle: Handle,
}

/// A point in a device's work.
#[derive(Debug)]
pub(super) struct Event {
    context: Arc<DeviceContext>,
    handle: Handle,
}

impl DeviceContext {
    const SCRATCH_BYTES: usize = 256;

    pub(super) fn new(driver: &CudaDriver, index: usize) -> Outcome<Arc<Self>> {
        let cuda = driver.functions().clone();
        let device = driver.device(index)?;
        let mut context: Handle = 0;
        // SAFETY: the device is one of the driver's; `drop` gives the context back.
        check(&*cuda, unsafe {
            cuda.primary_context_retain(&mut context, device)
        })?;
        let mut this = Self {
            cuda,
            device,
            context,
            scratch: 0,
        };
        let mut scratch = 0;
        {
            let _entered = this.enter()?;
            // SAFETY: a context is current; `drop` gives the memory back.
            this.check(unsafe { this.cuda.memory_alloc(&mut scratch, Self::SCRATCH_BYTES) })?;
        }
        this.scratch = scratch;
        Ok(Arc::new(this))
    }

    fn check(&self, result: c_int) -> Outcome<()> {
        check(&*self.cuda, result)
    }

    /// Makes the context this thread's current one for a while.
    pub(super) fn enter(&self) -> Outcome<Entered<'_>> {
        // SAFETY: the context is alive as long as this is.
        self.check(unsafe { self.cuda.context_push(self.context) })?;
        Ok(Entered(self, PhantomData))
    }

    pub(super) fn scratch(&self) -> u64 {
        self.scratch
    }

    /// The device's number that no other device in the world has.
    pub(super) fn uuid(&self) -> Outcome<[u8; 16]> {
        let mut uuid = [0; 16];
        // SAFETY: the result goes to a variable of that kind.
        self.check(unsafe { self.cuda.device_get_uuid(&mut uuid, self.device) })?;
        Ok(uuid)
    }

    pub(super) fn stream(self: &Arc<Self>) -> Outcome<Stream> {
        let _entered = self.enter()?;
        let mut handle = 0;
        // SAFETY: a context is current; `drop` gives the stream back.
        self.check(unsafe { self.cuda.stream_create(&mut handle, NON_BLOCKING) })?;
        Ok(Stream {
            context: self.clone(),
            handle,
        })
    }

    fn event(self: &Arc<Self>) -> Outcome<Event> {
        let mut handle = 0;
        // SAFETY: the caller has entered the context; `drop` gives the event back.
        self.check(unsafe { self.cuda.event_create(&mut handle, WITHOUT_TIMING) })?;
        Ok(Event {
            context: self.clone(),
            handle,
        })
    }

    /// Everything that was submitted to the device so far. The context must be entered.
    pub(super) fn so_far(self: &Arc<Self>) -> Outcome<Event> {
        let event = self.event()?;
        // SAFETY: the event is of this context.
        self.check(unsafe { self.cuda.context_record_event(self.context, event.handle) })?;
        Ok(event)
    }

    /// Everything that is submitted to the device from now on waits for `event`.
    pub(super) fn wait_for(&self, event: &Event) -> Outcome<()> {
        let _entered = self.enter()?;
        // SAFETY: the event is of this context.
        self.check(unsafe { self.cuda.context_wait_event(self.context, event.handle) })
    }
}

impl Drop for DeviceContext {
    fn drop(&mut self) {
        if self.scratch != 0
            && let Ok(_entered) = self.enter()
        {
            // SAFETY: the memory is this context's own, and no stream of it is left.
            unsafe { self.cuda.memory_free(self.scratch) };
        }
        // SAFETY: retained once, released once. A failure has nobody to be told to.
        unsafe { self.cuda.primary_context_release(self.device) };
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut left: Handle = 0;
        // SAFETY: pushed by this thread, which does not send this on: the result goes to a variable of that kind.
        unsafe { self.0.cuda.context_pop(&mut left) };
        debug_assert_eq!(left, self.0.context, "contexts are left in turn");
    }
}

impl Stream {
    /// What is submitted to the stream from now on waits for `event`.
    pub(super) fn wait_for(&self, event: &Event) -> Outcome<()> {
        let cuda = &self.context.cuda;
        // SAFETY: stream and event are alive and of one context.
        let result = unsafe { cuda.stream_wait_event(self.handle, event.handle, 0) };
        self.context.check(result)
    }

    /// What was submitted to the stream so far. The context must be entered.
    pub(super) fn so_far(&self) -> Outcome<Event> {
        let event = self.context.event()?;
        // SAFETY: stream and event are alive and of one context.
        let result = unsafe { self.context.cuda.event_record(event.handle, self.handle) };
        self.context.check(result)?;
        Ok(event)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: created once, given back once; CUDA ends what is in it first.
            unsafe { self.context.cuda.stream_destroy(self.handle) };
        }
    }
}

impl Event {
    /// Whether the device has come to this point.
    pub(super) fn is_reached(&self) -> Outcome<bool> {
        // SAFETY: the event is alive and was recorded.
        match unsafe { self.context.cuda.event_query(self.handle) } {
            NOT_READY => Ok(false),
            result => self.context.check(result).map(|()| true),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: created once, given back once; who waits for it goes on to do so.
            unsafe { self.context.cuda.event_destroy(self.handle) };
        }
    }
}

fn check(cuda: &dyn CudaFunctions, result: c_int) -> Outcome<()> {
    match result {
        SUCCESS => Ok(()),
        result => Err(words(cuda, result)),
    }
}
