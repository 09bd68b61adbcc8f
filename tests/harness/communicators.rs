//! Communicators of every kind, between threads of the test or, under mpirun, between processes.

use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use burn_dist::communicator::{
    Communicator, CommunicatorOptions, InProcessHub, Members, PeerConnection, ProcessCommunicator,
    RecordingCommunicator,
};

use crate::{mpi, run_threads};

/// What carries the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Threads of one process.
    InProcess,
    /// Connections as between processes of different hosts.
    Tcp,
    /// Shared memory as between processes of one host.
    SharedMemory,
    /// Shared memory between some, connections between others: ranks deal themselves to two hosts.
    Mixed,
    /// Threads of one process, seen through a recorder.
    Recorded,
    /// Processes that mpirun started, of which this is one.
    Mpi,
}

impl Kind {
    /// Every kind that there is here: MPI under mpirun, the others elsewhere.
    pub fn all() -> Vec<Self> {
        if under_mpirun() {
            return vec![Self::Mpi];
        }
        vec![
            Self::InProcess,
            Self::Tcp,
            Self::SharedMemory,
            Self::Mixed,
            Self::Recorded,
        ]
    }
}

/// Whether mpirun started this test, and the feature `mpi` is there: ranks are processes then, of which
/// each runs the tests one by one, with `--test-threads 1`.
pub fn under_mpirun() -> bool {
    cfg!(feature = "mpi") && std::env::var_os("OMPI_COMM_WORLD_SIZE").is_some()
}

/// Runs `f` on `n` rank threads, each with its communicator; results in rank order. Under mpirun this
/// process is one of the ranks, or none if there are fewer: the result is its own.
///
/// # Panics
/// If a rank panics, or if the ranks do not end before the deadline.
pub fn run_communicators<T: Send>(
    kind: Kind,
    n: usize,
    options: CommunicatorOptions,
    f: impl Fn(Arc<dyn Communicator>) -> T + Send + Sync,
) -> Vec<T> {
    let ranks: Vec<usize> = (0..n).collect();
    if kind == Kind::Mpi {
        return mpi::run(n, options, f);
    }
    let hub = InProcessHub::new();
    let streams = Mutex::new(match kind {
        Kind::InProcess | Kind::Recorded | Kind::Mpi => Vec::new(),
        Kind::Tcp | Kind::SharedMemory | Kind::Mixed => tcp_mesh(n).into_iter().map(Some).collect(),
    });
    run_threads(n, |rank| {
        let members = Members::new("contract", &ranks, rank).expect("a valid group");
        let communicator: Arc<dyn Communicator> = match kind {
            Kind::InProcess | Kind::Mpi => Arc::new(hub.connect(&members, options, None)),
            Kind::Recorded => {
                let inner = Arc::new(hub.connect(&members, options, None));
                Arc::new(RecordingCommunicator::new(inner))
            }
            Kind::Tcp | Kind::SharedMemory | Kind::Mixed => {
                let options = CommunicatorOptions {
                    shared_memory: kind != Kind::Tcp,
                    host: (kind == Kind::Mixed).then_some(rank as u32 % 2),
                    ..options
                };
                let own = streams.lock().expect("not poisoned")[rank].take();
                let own = own.expect("taken once");
                Arc::new(
                    ProcessCommunicator::new(members, own, options, None).expect("open sockets"),
                )
            }
        };
        f(communicator)
    })
}

/// Connections between `n` ranks: `[i][j]` leads from rank `i` to rank `j`, `[i][i]` is `None`.
///
/// # Panics
/// If the loopback interface cannot be used.
pub fn tcp_mesh(n: usize) -> Vec<Vec<Option<PeerConnection>>> {
    let pair = |(control, data): (Vec<_>, Vec<_>)| {
        let both = |(control, data): (Option<_>, Option<_>)| {
            let (control, data) = (control?, data?);
            Some(PeerConnection { control, data })
        };
        control.into_iter().zip(data).map(both).collect()
    };
    streams(n).into_iter().zip(streams(n)).map(pair).collect()
}

fn streams(n: usize) -> Vec<Vec<Option<TcpStream>>> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let mut streams: Vec<Vec<Option<TcpStream>>> =
        (0..n).map(|_| (0..n).map(|_| None).collect()).collect();
    for i in 0..n {
        for j in 0..i {
            let there = TcpStream::connect(address).expect("the listener is open");
            let (here, _) = listener.accept().expect("one connection waits");
            streams[i][j] = Some(here);
            streams[j][i] = Some(there);
        }
    }
    streams
}
