//! NCCL as tests play it.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::fakes::Machine;
use super::foreign::Handle;
use super::nccl_functions::{Config, IN_PROGRESS, NcclFunctions, UniqueId};

#[derive(Debug)]
pub(super) struct FakeNccl(pub(super) Arc<Machine>);

impl NcclFunctions for FakeNccl {
    unsafe fn get_version(&self, version: *mut c_int) -> c_int {
        // SAFETY: the caller's.
        unsafe { *version = self.0.nccl_version.load(Ordering::SeqCst) };
        0
    }

    unsafe fn get_error_string(&self, _result: c_int) -> *const c_char {
        c"words of NCCL".as_ptr()
    }

    unsafe fn get_last_error(&self, comm: Handle) -> *const c_char {
        self.0.check(comm, "comm");
        c"the last error".as_ptr()
    }

    unsafe fn get_unique_id(&self, id: *mut UniqueId) -> c_int {
        // SAFETY: the caller's.
        unsafe { *id = UniqueId([7; UniqueId::BYTES]) };
        0
    }

    unsafe fn comm_init_rank_config(
        &self,
        comm: *mut Handle,
        ranks: c_int,
        id: UniqueId,
        rank: c_int,
        config: *mut Config,
    ) -> c_int {
        self.0.check_entered();
        let own = id == UniqueId([7; UniqueId::BYTES]);
        // SAFETY: the caller's.
        let blocking = unsafe {
            *comm = self.0.give("comm");
            (*config).blocking
        };
        self.0.note(format!(
            "init {rank} of {ranks}, own id: {own}, blocking: {blocking}"
        ));
        IN_PROGRESS
    }

    unsafe fn comm_get_async_error(&self, comm: Handle, result: *mut c_int) -> c_int {
        self.0.check(comm, "comm");
        let left = self.0.in_progress.load(Ordering::SeqCst);
        if left > 0 {
            self.0.in_progress.store(left - 1, Ordering::SeqCst);
        }
        let state = match left {
            0 => {
                self.0.splitting.store(0, Ordering::SeqCst);
                self.0.state.load(Ordering::SeqCst)
            }
            _ => IN_PROGRESS,
        };
        // SAFETY: the caller's.
        unsafe { *result = state };
        0
    }

    unsafe fn comm_finalize(&self, comm: Handle) -> c_int {
        self.0.check(comm, "comm");
        self.0.note("finalize");
        IN_PROGRESS
    }

    unsafe fn comm_destroy(&self, comm: Handle) -> c_int {
        self.0.take_back(comm, "comm");
        self.0.note("destroy");
        0
    }

    unsafe fn comm_abort(&self, comm: Handle) -> c_int {
        self.0.take_back(comm, "comm");
        // NCCL itself takes back what it had not handed out.
        match self.0.splitting.swap(0, Ordering::SeqCst) {
            0 => {}
            part => self.0.take_back(part, "comm"),
        }
        self.0.note("abort");
        0
    }

    unsafe fn comm_split(
        &self,
        comm: Handle,
        color: c_int,
        key: c_int,
        new: *mut Handle,
        _config: *mut Config,
    ) -> c_int {
        self.0.check(comm, "comm");
        self.0.check_entered();
        // SAFETY: the caller's.
        unsafe { *new = self.0.give("comm") };
        // SAFETY: as above.
        self.0.splitting.store(unsafe { *new }, Ordering::SeqCst);
        self.0.note(format!("split {color} {key}"));
        IN_PROGRESS
    }

    unsafe fn group_start(&self) -> c_int {
        self.0.note("group");
        0
    }

    unsafe fn group_end(&self) -> c_int {
        self.0.note("end");
        0
    }

    unsafe fn all_reduce(
        &self,
        send: u64,
        receive: u64,
        count: usize,
        kind: c_int,
        op: c_int,
        comm: Handle,
        stream: Handle,
    ) -> c_int {
        let text = match count {
            // A barrier's address is the machine's own.
            1 if send == receive => format!("all_reduce(1 of {kind}, op {op})"),
            _ => format!("all_reduce({send} to {receive}, {count} of {kind}, op {op})"),
        };
        self.0.submit(comm, stream, text)
    }

    unsafe fn reduce_scatter(
        &self,
        send: u64,
        receive: u64,
        count: usize,
        kind: c_int,
        op: c_int,
        comm: Handle,
        stream: Handle,
    ) -> c_int {
        let text = format!("reduce_scatter({send} to {receive}, {count} of {kind}, op {op})");
        self.0.submit(comm, stream, text)
    }

    unsafe fn all_gather(
        &self,
        send: u64,
        receive: u64,
        count: usize,
        kind: c_int,
        comm: Handle,
        stream: Handle,
    ) -> c_int {
        let text = format!("all_gather({send} to {receive}, {count} of {kind})");
        self.0.submit(comm, stream, text)
    }

    unsafe fn broadcast(
        &self,
        send: u64,
        receive: u64,
        count: usize,
        kind: c_int,
        root: c_int,
        comm: Handle,
        stream: Handle,
    ) -> c_int {
        let text = format!("broadcast({send} to {receive}, {count} of {kind}, root {root})");
        self.0.submit(comm, stream, text)
    }

    unsafe fn send(
        &self,
        send: u64,
        count: usize,
        kind: c_int,
        peer: c_int,
        comm: Handle,
        stream: Handle,
    ) -> c_int {
        let text = format!("send({send}, {count} of {kind}, to {peer})");
        self.0.submit(comm, stream, text);
        self.0.send_result.load(Ordering::SeqCst)
    }

    unsafe fn recv(
        &self,
        receive: u64,
        count: usize,
        kind: c_int,
        peer: c_int,
        comm: Handle,
        stream: Handle,
    ) -> c_int {
        let text = format!("recv({receive}, {count} of {kind}, from {peer})");
        self.0.submit(comm, stream, text)
    }
}
