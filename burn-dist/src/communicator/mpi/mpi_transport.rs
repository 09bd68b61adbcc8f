//! [`MpiTransport`]: one MPI communicator as a transport.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mpi::ffi;

use super::mpi_runtime::MpiRuntime;
use super::requests::{Handle, Requests, check};
use crate::communicator::Reduction;
use crate::communicator::transport::{
    Announcement, Arrays, Fault, Incoming, MAX_MESSAGE, Outgoing, Patience, Transport, spins,
};

const ARRAY: c_int = 1;
const MESSAGE: c_int = 2;
const CONTROL: c_int = 3;

/// First byte of a last word.
const ABORT: u8 = 3;
const LEAVE: u8 = 4;

/// Longest reason that an abort carries: MPI sends as much at once, without asking the receiver.
const MAX_CAUSE: usize = 2048;

/// Longest time that last words take.
const FAREWELL: Duration = Duration::from_millis(500);

/// A member that waited so long sleeps between looks; MPI cannot wake it.
const AWAKE: Duration = Duration::from_millis(2);
const NAP: Duration = Duration::from_micros(100);

/// How often last words of others are looked for.
const CONTROL_SLICE: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct MpiTransport {
    runtime: MpiRuntime,
    comm: Handle,
    index: usize,
    hosts: Vec<usize>,
    spins: u32,
    left: Vec<bool>,
}

impl MpiTransport {
    pub(super) fn new(runtime: MpiRuntime, comm: Handle, index: usize, hosts: Vec<usize>) -> Self {
        Self {
            runtime,
            comm,
            index,
            spins: spins(hosts.len()),
            left: vec![false; hosts.len()],
            hosts,
        }
    }

    /// A message that has come from a member with this tag: its length.
    fn probe(&self, from: usize, tag: c_int) -> Result<Option<usize>, Fault> {
        let mut found = 0;
        let mut count = 0;
        let mut status = std::mem::MaybeUninit::<ffi::MPI_Status>::uninit();
        // SAFETY: the status is only read if MPI has written it.
        let code = unsafe {
            ffi::MPI_Iprobe(
                from as c_int,
                tag,
                self.comm.0,
                &mut found,
                status.as_mut_ptr(),
            )
        };
        check(code).map_err(|detail| Fault::Lost {
            indices: vec![from],
            detail,
        })?;
        if found == 0 {
            return Ok(None);
        }
        // SAFETY: a message was found, so its status is written.
        unsafe { ffi::MPI_Get_count(status.as_ptr(), ffi::RSMPI_UINT8_T, &mut count) };
        Ok(Some(count as usize))
    }

    /// Last words that have come.
    fn listen(&mut self) -> Result<(), Fault> {
        for from in (0..self.hosts.len()).filter(|&from| from != self.index) {
            let Some(length) = self.probe(from, CONTROL)? else {
                continue;
            };
            let garbled = Fault::Garbled {
                index: from,
                detail: "a last word that cannot be read".into(),
            };
            if length > MAX_CAUSE + 1 {
                return Err(garbled);
            }
            let mut word = vec![0; length];
            let mut requests = Requests::new(self.comm);
            // SAFETY: `word` outlives the requests.
            unsafe { requests.receive(from, CONTROL, &mut word)? };
            // It is here: this ends at once.
            requests.wait(FAREWELL);
            drop(requests);
            match word.split_first() {
                Some((&LEAVE, _)) => self.left[from] = true,
                Some((&ABORT, cause)) => {
                    return Err(Fault::PeerFailed {
                        index: from,
                        cause: String::from_utf8_lossy(cause).into_owned(),
                    });
                }
                _ => return Err(garbled),
            }
        }
        Ok(())
    }

    /// Lets transfers go on until all have ended; `more` adds some on the way, and says from whom it
    /// still waits for a first sign.
    fn drive(
        &mut self,
        requests: &mut Requests,
        patience: Patience<'_>,
        mut more: impl FnMut(&Self, &mut Requests) -> Result<Vec<usize>, Fault>,
    ) -> Result<(), Fault> {
        let mut idle = 0;
        let mut begun: Option<Instant> = None;
        let mut listened = Instant::now();
        let mut last_look = None;
        loop {
            let missing = more(self, requests)?;
            let moved = requests.advance()?;
            if requests.is_empty() && missing.is_empty() {
                return Ok(());
            }
            if moved {
                (idle, begun, last_look) = (0, None, None);
                continue;
            }
            idle += 1;
            if idle < self.spins {
                std::hint::spin_loop();
                continue;
            }
            let now = Instant::now();
            if patience.cancelled.load(Ordering::Acquire) {
                return Err(Fault::Cancelled);
            }
            if let Some(fault) = last_look.take() {
                return Err(fault);
            }
            let mut waiting_for = requests.peers();
            waiting_for.extend(missing);
            waiting_for.sort_unstable();
            waiting_for.dedup();
            if now.duration_since(listened) > CONTROL_SLICE {
                listened = now;
                self.listen()?;
                let gone = waiting_for.iter().find(|&&peer| self.left[peer]);
                // What a member sent before it left may have come in between.
                last_look = gone.map(|&index| Fault::Left { index });
                if last_look.is_some() {
                    continue;
                }
            }
            if now >= patience.deadline {
                return Err(Fault::Timeout { waiting_for });
            }
            match now.duration_since(*begun.get_or_insert(now)) > AWAKE {
                true => std::thread::sleep(NAP),
                false => std::thread::yield_now(),
            }
        }
    }

    fn announce(
        &mut self,
        announcement: Announcement<'_>,
        patience: Patience<'_>,
    ) -> Result<(), Fault> {
        let bytes = announcement.header();
        let index = self.index;
        let others = (0..self.hosts.len()).filter(|&other| other != index);
        let messages: Vec<Outgoing<'_>> = others.map(|to| Outgoing { to, bytes }).collect();
        self.exchange_messages(&messages, announcement.heard, patience)?;
        announcement.check(index)
    }

    /// One last word to all members.
    fn farewell(&mut self, word: &[u8]) {
        let word: Arc<[u8]> = word.into();
        let mut requests = Requests::new(self.comm);
        for to in (0..self.hosts.len()).filter(|&to| to != self.index) {
            if requests.send_message(to, CONTROL, &word).is_err() {
                // A member that cannot be told is gone anyway.
                break;
            }
        }
        requests.wait(FAREWELL);
    }
}

impl Transport for MpiTransport {
    fn exchange(
        &mut self,
        announcement: Option<Announcement<'_>>,
        outgoing: &[Outgoing<'_>],
        incoming: &mut [Incoming<'_>],
        patience: Patience<'_>,
    ) -> Result<(), Fault> {
        if let Some(announcement) = announcement {
            self.announce(announcement, patience)?;
        }
        // Dropped before this returns, and so before the borrows end.
        let mut requests = Requests::new(self.comm);
        for incoming in incoming.iter_mut() {
            // SAFETY: the arrays are borrowed for longer than the requests live.
            unsafe { requests.receive(incoming.from, ARRAY, incoming.bytes)? };
        }
        for outgoing in outgoing {
            // SAFETY: as above.
            unsafe { requests.send(outgoing.to, ARRAY, outgoing.bytes)? };
        }
        self.drive(&mut requests, patience, |_, _| Ok(Vec::new()))
    }

    /// Messages are never empty: each is at least a header.
    fn exchange_messages(
        &mut self,
        messages: &[Outgoing<'_>],
        heard: &mut [Vec<u8>],
        patience: Patience<'_>,
    ) -> Result<(), Fault> {
        let mut requests = Requests::new(self.comm);
        for message in messages {
            requests.send_message(message.to, MESSAGE, &message.bytes.into())?;
        }
        let mut expected: Vec<bool> = vec![true; messages.len()];
        let mut came = Vec::new();
        self.drive(&mut requests, patience, |this, requests| {
            for (i, message) in messages.iter().enumerate().filter(|(i, _)| expected[*i]) {
                let from = message.to;
                let Some(length) = this.probe(from, MESSAGE)? else {
                    continue;
                };
                if length > MAX_MESSAGE {
                    return Err(Fault::Garbled {
                        index: from,
                        detail: format!("a message of {length} bytes"),
                    });
                }
                heard[i].resize(length, 0);
                // SAFETY: `heard` is borrowed for longer than the requests live, and its vectors are
                // not changed again: this one is no longer expected.
                unsafe { requests.receive(from, MESSAGE, &mut heard[i])? };
                came.push(i);
            }
            came.drain(..).for_each(|i| expected[i] = false);
            let missing = (0..messages.len()).filter(|&i| expected[i]);
            Ok(missing.map(|i| messages[i].to).collect())
        })
    }

    fn reduce(
        &mut self,
        _announcement: Option<Announcement<'_>>,
        _reduction: Reduction,
        _arrays: Arrays<'_>,
        _patience: Patience<'_>,
    ) -> Result<(), Fault> {
        unreachable!("invariant: an MPI communicator is made with `pipelined: false`")
    }

    fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    fn abort(&mut self, cause: &str) {
        self.runtime.note_failure();
        let mut end = cause.len().min(MAX_CAUSE);
        while !cause.is_char_boundary(end) {
            end -= 1;
        }
        self.farewell(&[&[ABORT], &cause.as_bytes()[..end]].concat());
    }

    fn leave(&mut self) {
        self.farewell(&[LEAVE]);
    }
}
