//! [`MpiRuntime`]: MPI's start and end, and the making of groups.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mpi::ffi;

use super::requests::{Handle, Requests, check};
use crate::communicator::Members;
use crate::deadline::deadline;
use crate::error::{DistError, Result};

const MEET: c_int = 4;
const MAKE: c_int = 5;

/// Longest name of a group on the wire.
const MAX_KEY: usize = 60_000;

/// MPI, started for calls from several threads. Ends with the process, in order unless a group failed:
/// then mpirun ends the ranks that are stuck. Cheap to clone.
#[derive(Debug, Clone)]
pub struct MpiRuntime(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    world: Handle,
    rank: usize,
    size: usize,
    /// A host's number for each rank.
    hosts: Vec<usize>,
    /// Groups are made one at a time.
    making: Mutex<()>,
}

fn refuse(problem: impl Into<String>, hint: &str) -> DistError {
    DistError::config(problem, hint)
}

impl MpiRuntime {
    /// Starts MPI, unless it is. All ranks of the job call this.
    ///
    /// # Errors
    /// [`DistError::Config`] if MPI was ended before in this process, or if it cannot be called from
    /// several threads.
    pub fn start() -> Result<Self> {
        let (mut before, mut after, mut provided) = (0, 0, 0);
        let again = "make worlds before MPI is ended";
        // SAFETY: the first two may be called at any time, MPI_Init_thread once; null pointers stand for
        // the program's arguments. `finalize` takes and returns nothing, and does not panic.
        unsafe {
            let multiple = ffi::RSMPI_THREAD_MULTIPLE;
            ffi::MPI_Finalized(&mut after);
            if after != 0 {
                return Err(refuse("MPI was ended before in this process", again));
            }
            ffi::MPI_Initialized(&mut before);
            if before != 0 {
                ffi::MPI_Query_thread(&mut provided);
            } else {
                let (count, arguments) = (std::ptr::null_mut(), std::ptr::null_mut());
                let code = ffi::MPI_Init_thread(count, arguments, multiple, &mut provided);
                check(code).map_err(|e| refuse(format!("MPI did not start: {e}"), again))?;
                libc::atexit(finalize);
            }
            if provided < multiple {
                return Err(refuse(
                    format!("this MPI gives thread level {provided}, but {multiple} is needed"),
                    "use an MPI that was built with MPI_THREAD_MULTIPLE, and start it with that",
                ));
            }
        }
        let broken = |e: String| refuse(e, "look at the output of mpirun");
        let (mut rank, mut size) = (0, 0);
        // SAFETY: MPI is started; every pointer is to a variable of the right kind, and `hosts` has
        // room for one number per rank.
        unsafe {
            let mut world = ffi::RSMPI_COMM_NULL;
            // Of our own, so that a program's own use of MPI does not meet ours.
            check(ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, &mut world)).map_err(broken)?;
            check(ffi::MPI_Comm_set_errhandler(
                world,
                ffi::RSMPI_ERRORS_RETURN,
            ))
            .map_err(broken)?;
            check(ffi::MPI_Comm_rank(world, &mut rank)).map_err(broken)?;
            check(ffi::MPI_Comm_size(world, &mut size)).map_err(broken)?;
            let hosts = find_hosts(world, rank, size).map_err(broken)?;
            Ok(Self(Arc::new(Inner {
                world: Handle(world),
                rank: rank as usize,
                size: size as usize,
                hosts,
                making: Mutex::new(()),
            })))
        }
    }

    /// This process's rank.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// A rank's host, as a number that only says which ranks share one.
    pub(super) fn host(&self, rank: usize) -> usize {
        self.0.hosts[rank]
    }

    pub(super) fn note_failure(&self) {
        FAILED.store(true, Ordering::Release);
    }

    /// A communicator of these members, all of whom are here.
    pub(super) fn meet(&self, members: &Members, key: &str, longest: Duration) -> Result<Handle> {
        let _one = self
            .0
            .making
            .lock()
            .expect("invariant: no panic under this lock");
        let failure = |problem: String| {
            DistError::Rendezvous {
            rank: self.0.rank,
            address: format!("group {}", members.name()),
            problem,
            hint: "read the output of these ranks; every member makes the same groups in the same order"
                .into(),
        }
        };
        if members.rank() != self.0.rank || members.ranks().iter().any(|&r| r >= self.0.size) {
            return Err(failure(format!(
                "rank {} of {} ranks in MPI makes a group of ranks {:?} as rank {}",
                self.0.rank,
                self.0.size,
                members.ranks(),
                members.rank()
            )));
        }
        let key: Arc<[u8]> = key.as_bytes()[..key.len().min(MAX_KEY)].into();
        let others = members.ranks().iter().filter(|&&rank| rank != self.0.rank);
        let mut requests = Requests::new(self.0.world);
        for &other in others.clone() {
            let sent = requests.send_message(other, MEET, &key);
            sent.map_err(|fault| failure(format!("{fault:?}")))?;
        }
        let until = deadline(longest);
        let mut missing: Vec<usize> = others.copied().collect();
        while !missing.is_empty() && Instant::now() < until {
            let mut wrong = None;
            missing.retain(|&other| match self.heard(other) {
                Some(theirs) if *theirs == *key => false,
                Some(theirs) => {
                    wrong.get_or_insert((other, theirs));
                    false
                }
                None => true,
            });
            if let Some((other, theirs)) = wrong {
                self.note_failure();
                return Err(failure(format!(
                    "rank {other} makes another group: expected {:?}, got {:?}",
                    String::from_utf8_lossy(&key),
                    String::from_utf8_lossy(&theirs)
                )));
            }
            // Lets MPI work; a send that fails shows as a member that does not come.
            let _ = requests.advance();
            std::thread::yield_now();
        }
        requests.wait(Duration::from_millis(100));
        drop(requests);
        if !missing.is_empty() {
            self.note_failure();
            return Err(failure(format!(
                "rank(s) {missing:?} did not come to group {} within {longest:?}",
                members.name()
            )));
        }
        self.make(members).map_err(failure)
    }

    /// The next key of a rank, if it has come.
    fn heard(&self, from: usize) -> Option<Vec<u8>> {
        let (mut found, mut count) = (0, 0);
        let mut status = std::mem::MaybeUninit::<ffi::MPI_Status>::uninit();
        // SAFETY: the status is only read if MPI has written it.
        unsafe {
            let world = self.0.world.0;
            ffi::MPI_Iprobe(from as c_int, MEET, world, &mut found, status.as_mut_ptr());
            if found == 0 {
                return None;
            }
            ffi::MPI_Get_count(status.as_ptr(), ffi::RSMPI_UINT8_T, &mut count);
        }
        let mut key = vec![0; (count as usize).min(MAX_KEY)];
        let mut requests = Requests::new(self.0.world);
        // SAFETY: `key` outlives the requests.
        unsafe { requests.receive(from, MEET, &mut key).ok()? };
        requests.wait(Duration::from_secs(1));
        drop(requests);
        Some(key)
    }

    /// Collective over the members, who have all come. Never freed: last words may still be under way
    /// when a group is dropped, and a number that MPI gives away again must not meet them.
    fn make(&self, members: &Members) -> std::result::Result<Handle, String> {
        let ranks: Vec<c_int> = members.ranks().iter().map(|&rank| rank as c_int).collect();
        // SAFETY: MPI is started; every pointer is to a variable of the right kind, and `ranks` has as
        // many numbers as is said.
        unsafe {
            let (mut all, mut some) = (ffi::RSMPI_GROUP_NULL, ffi::RSMPI_GROUP_NULL);
            let mut made = ffi::RSMPI_COMM_NULL;
            let world = self.0.world.0;
            check(ffi::MPI_Comm_group(world, &mut all))?;
            let count = ranks.len() as c_int;
            check(ffi::MPI_Group_incl(all, count, ranks.as_ptr(), &mut some))?;
            check(ffi::MPI_Comm_create_group(world, some, MAKE, &mut made))?;
            check(ffi::MPI_Comm_set_errhandler(made, ffi::RSMPI_ERRORS_RETURN))?;
            check(ffi::MPI_Group_free(&mut some))?;
            check(ffi::MPI_Group_free(&mut all))?;
            Ok(Handle(made))
        }
    }

    /// Forgets that groups failed, in a program that goes on after that on all ranks: MPI then ends in
    /// order.
    pub fn forget_failures(&self) {
        FAILED.store(false, Ordering::Release);
    }

    /// Version of the library, as it describes itself.
    pub fn library_version() -> String {
        let mut text = [0u8; 8192];
        let mut length = 0;
        // SAFETY: may be called at any time; the buffer is as long as the longest description.
        unsafe {
            ffi::MPI_Get_library_version(text.as_mut_ptr().cast::<c_char>(), &mut length);
        }
        let text = &text[..usize::try_from(length).unwrap_or(0).min(text.len())];
        String::from_utf8_lossy(text).trim_end_matches('\0').into()
    }
}

/// The first rank of each rank's host. Collective over all ranks.
///
/// # Safety
/// MPI is started, and `world` is a communicator of `size` ranks.
unsafe fn find_hosts(
    world: ffi::MPI_Comm,
    rank: c_int,
    size: c_int,
) -> std::result::Result<Vec<usize>, String> {
    let mut hosts: Vec<c_int> = vec![0; size as usize];
    // SAFETY: by the caller; every pointer is to variables of the right kind and number.
    unsafe {
        let mut host = ffi::RSMPI_COMM_NULL;
        let (kind, info) = (ffi::RSMPI_COMM_TYPE_SHARED, ffi::RSMPI_INFO_NULL);
        check(ffi::MPI_Comm_split_type(world, kind, rank, info, &mut host))?;
        let (number, mut first) = (rank, 0);
        let (int, min) = (ffi::RSMPI_INT32_T, ffi::RSMPI_MIN);
        let number = std::ptr::from_ref(&number).cast();
        let smallest = std::ptr::from_mut(&mut first).cast();
        check(ffi::MPI_Allreduce(number, smallest, 1, int, min, host))?;
        check(ffi::MPI_Comm_free(&mut host))?;
        let mine = std::ptr::from_ref(&first).cast();
        let all = hosts.as_mut_ptr().cast();
        check(ffi::MPI_Allgather(mine, 1, int, all, 1, int, world))?;
    }
    Ok(hosts.into_iter().map(|host| host as usize).collect())
}

/// A group of this process failed. MPI belongs to the process, and so does this.
static FAILED: AtomicBool = AtomicBool::new(false);

/// At the end of the process. MPI's end waits for all ranks: after a failure the process ends without
/// it, and mpirun ends those that are stuck.
extern "C" fn finalize() {
    let mut ended = 0;
    if FAILED.load(Ordering::Acquire) {
        return;
    }
    // SAFETY: MPI is started, and the program's own threads make no more calls. If the program has ended
    // MPI itself, nothing is left to do.
    unsafe {
        ffi::MPI_Finalized(&mut ended);
        if ended == 0 {
            ffi::MPI_Finalize();
        }
    }
}
