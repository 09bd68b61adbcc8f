//! [`Requests`]: transfers under way over one MPI communicator.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mpi::ffi;

use crate::communicator::transport::Fault;

/// Longest piece: MPI counts in `int`.
const PIECE: usize = 1 << 30;

/// How long transfers may take to come to rest after a failure.
const REST: Duration = Duration::from_secs(5);

/// A communicator of MPI.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handle(pub(super) ffi::MPI_Comm);

// SAFETY: a handle is a name, and MPI is started for calls from several threads.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// What a code of MPI means.
pub(super) fn describe(code: c_int) -> String {
    let mut text = [0u8; 1024];
    let mut length = 0;
    // SAFETY: the buffer is longer than MPI_MAX_ERROR_STRING of every implementation.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut length) };
    let text = &text[..usize::try_from(length).unwrap_or(0).min(text.len())];
    format!("MPI: {}", String::from_utf8_lossy(text))
}

/// Whether a call of MPI went well.
pub(super) fn check(code: c_int) -> Result<(), String> {
    match code == ffi::MPI_SUCCESS as c_int {
        true => Ok(()),
        false => Err(describe(code)),
    }
}

#[derive(Debug)]
struct Transfer {
    peer: usize,
    request: ffi::MPI_Request,
    /// Bytes that must come; `None` for what goes.
    expected: Option<usize>,
    /// What is sent, where it is kept for that: then it may stay with MPI for ever.
    kept: Option<Arc<[u8]>>,
}

/// Transfers from and to memory. Dropped, also by a panic, they come to rest before the memory can go.
#[derive(Debug)]
pub(super) struct Requests {
    comm: Handle,
    transfers: Vec<Transfer>,
}

// SAFETY: a request is a name, and MPI is started for calls from several threads.
unsafe impl Send for Requests {}

fn lost(peer: usize, detail: String) -> Fault {
    Fault::Lost {
        indices: vec![peer],
        detail,
    }
}

impl Requests {
    pub(super) fn new(comm: Handle) -> Self {
        Self {
            comm,
            transfers: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.transfers.is_empty()
    }

    /// Members that something is under way with.
    pub(super) fn peers(&self) -> Vec<usize> {
        let mut peers: Vec<usize> = self
            .transfers
            .iter()
            .map(|transfer| transfer.peer)
            .collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// Starts to send.
    ///
    /// # Safety
    /// The bytes stay where they are and as they are for as long as these requests live.
    pub(super) unsafe fn send(&mut self, to: usize, tag: c_int, bytes: &[u8]) -> Result<(), Fault> {
        // SAFETY: by the caller.
        unsafe { self.start_send(to, tag, bytes, None) }
    }

    /// Starts to send a short message, and keeps it.
    pub(super) fn send_message(
        &mut self,
        to: usize,
        tag: c_int,
        message: &Arc<[u8]>,
    ) -> Result<(), Fault> {
        // SAFETY: the transfer keeps the bytes, and they are never changed.
        unsafe { self.start_send(to, tag, message, Some(message)) }
    }

    /// # Safety
    /// As for `send`, unless the bytes are `kept`.
    unsafe fn start_send(
        &mut self,
        to: usize,
        tag: c_int,
        bytes: &[u8],
        kept: Option<&Arc<[u8]>>,
    ) -> Result<(), Fault> {
        for piece in pieces(bytes.len()) {
            // SAFETY: a null request is what MPI expects to overwrite.
            let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
            // SAFETY: the piece lies inside the bytes, which the caller keeps.
            let code = unsafe {
                ffi::MPI_Isend(
                    bytes[piece.clone()].as_ptr().cast::<c_void>(),
                    piece.len() as c_int,
                    ffi::RSMPI_UINT8_T,
                    to as c_int,
                    tag,
                    self.comm.0,
                    &mut request,
                )
            };
            check(code).map_err(|detail| lost(to, detail))?;
            self.transfers.push(Transfer {
                peer: to,
                request,
                expected: None,
                kept: kept.cloned(),
            });
        }
        Ok(())
    }

    /// Starts to receive just as many bytes.
    ///
    /// # Safety
    /// As for `send`; nobody else looks at the bytes in that time.
    pub(super) unsafe fn receive(
        &mut self,
        from: usize,
        tag: c_int,
        bytes: &mut [u8],
    ) -> Result<(), Fault> {
        for piece in pieces(bytes.len()) {
            // SAFETY: a null request is what MPI expects to overwrite.
            let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
            // SAFETY: the piece lies inside the bytes, which the caller keeps.
            let code = unsafe {
                ffi::MPI_Irecv(
                    bytes[piece.clone()].as_mut_ptr().cast::<c_void>(),
                    piece.len() as c_int,
                    ffi::RSMPI_UINT8_T,
                    from as c_int,
                    tag,
                    self.comm.0,
                    &mut request,
                )
            };
            check(code).map_err(|detail| lost(from, detail))?;
            self.transfers.push(Transfer {
                peer: from,
                request,
                expected: Some(piece.len()),
                kept: None,
            });
        }
        Ok(())
    }

    /// Lets MPI work, and forgets what has ended; whether anything has.
    pub(super) fn advance(&mut self) -> Result<bool, Fault> {
        let before = self.transfers.len();
        let mut fault = None;
        self.transfers.retain_mut(|transfer| {
            let mut done = 0;
            let mut status = std::mem::MaybeUninit::<ffi::MPI_Status>::uninit();
            // SAFETY: the request is one that MPI gave, not ended before; the status is only read if
            // MPI has written it.
            let code =
                unsafe { ffi::MPI_Test(&mut transfer.request, &mut done, status.as_mut_ptr()) };
            if let Err(detail) = check(code) {
                fault.get_or_insert(lost(transfer.peer, detail));
                return false;
            }
            if done == 0 {
                return true;
            }
            if let Some(expected) = transfer.expected {
                let mut count = 0;
                // SAFETY: the request has ended, so its status is written.
                unsafe {
                    ffi::MPI_Get_count(status.as_ptr(), ffi::RSMPI_UINT8_T, &mut count);
                }
                if count as usize != expected {
                    fault.get_or_insert(Fault::Garbled {
                        index: transfer.peer,
                        detail: format!("{count} bytes instead of {expected}"),
                    });
                }
            }
            false
        });
        match fault {
            Some(fault) => Err(fault),
            None => Ok(self.transfers.len() < before),
        }
    }

    /// Waits a bounded time.
    pub(super) fn wait(&mut self, longest: Duration) {
        let until = Instant::now() + longest;
        while !self.transfers.is_empty() && Instant::now() < until {
            let _ = self.advance();
            std::thread::yield_now();
        }
    }
}

impl Drop for Requests {
    /// Gives receives up and lets sends end, so that MPI does not touch the memory any more; kept
    /// messages are left to it. Where that cannot be had, because a member is stuck amid a transfer, the
    /// job ends: there is no other way to keep MPI from writing to memory that is somebody else's by
    /// then.
    fn drop(&mut self) {
        self.transfers.retain_mut(|transfer| {
            if transfer.expected.is_some() {
                // SAFETY: the request is one that MPI gave, not ended before.
                unsafe { ffi::MPI_Cancel(&mut transfer.request) };
            }
            match transfer.kept.take() {
                Some(message) => {
                    std::mem::forget(message);
                    false
                }
                None => true,
            }
        });
        let until = Instant::now() + REST;
        while !self.transfers.is_empty() {
            // A transfer that was given up ends with another count.
            let _ = self.advance();
            if Instant::now() > until {
                eprintln!(
                    "error: transfers with members {:?} cannot be given up; ending the MPI job",
                    self.peers()
                );
                // SAFETY: ends all processes of the job.
                unsafe { ffi::MPI_Abort(self.comm.0, 1) };
                std::process::abort();
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

fn pieces(len: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..len)
        .step_by(PIECE)
        .map(move |start| start..len.min(start + PIECE))
}
