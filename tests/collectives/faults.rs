//! What every rank gets when a rank ends, stays away, breaks or gives up.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use burn::tensor::DType;
use burn_dist::DistError;
use burn_dist::communicator::{
    Algorithm, Communicator, CommunicatorOptions, HostBuffer, Members, Operation, PeerConnection,
    ProcessCommunicator, ReduceOp,
};
use tests::{Kind, run_communicators, run_threads, tcp_mesh, under_mpirun};

use super::{options, run, start};

pub(crate) const SUM: Operation = Operation::AllReduce(ReduceOp::Sum);

pub(crate) fn zeros(dtype: DType, shape: &[usize]) -> HostBuffer {
    HostBuffer::zeros(dtype, shape.to_vec())
}

/// A call that every rank makes alike.
pub(crate) fn agree(c: &dyn Communicator) -> Result<(), DistError> {
    let n = c.members().size();
    let sum = run(c, SUM, HostBuffer::from_values(vec![1.0f32; 5]))?;
    assert_eq!(sum.to_values::<f32>(), vec![n as f32; 5]);
    Ok(())
}

/// The group is closed: run and start are refused at once, with the first failure as the cause.
pub(crate) fn check_refusal(c: &dyn Communicator, first: &DistError) {
    assert_eq!(c.failure().as_ref(), Some(first));
    let ran = agree(c);
    let started = start(c, Operation::Barrier, zeros(DType::F32, &[0])).wait();
    for (name, refused) in [("all_reduce", ran), ("barrier", started.map(drop))] {
        match refused {
            Err(error @ DistError::Poisoned { .. }) => {
                assert_eq!(error.root_cause(), first);
                let text = error.to_string();
                assert!(text.contains(&format!("refused {name}")), "{text}");
            }
            other => panic!("a group that failed went on: {other:?}"),
        }
    }
}

/// Whether the error itself, or the peer that passed it on, blames rank `culprit` in these words.
fn check_blame(error: &DistError, words: &str, culprit: usize) {
    let text = error.to_string();
    let blamed = match error {
        DistError::PeerLost { lost, .. } => lost == &[culprit],
        DistError::Timeout { waiting_for, .. } => waiting_for == &[culprit],
        DistError::PeerFailed { cause, .. } => cause.contains(&format!("[{culprit}]")),
        _ => false,
    };
    assert!(
        blamed && text.contains(words),
        "{culprit} is not blamed in: {text}"
    );
}

#[test]
fn a_rank_that_leaves_before_its_third_all_reduce_is_named_by_all() {
    for kind in Kind::all() {
        for algorithm in super::ALGORITHMS {
            for n in [2, 3] {
                let last = n - 1;
                run_communicators(kind, n, options(algorithm), |c| {
                    agree(&*c).expect("all are there");
                    agree(&*c).expect("all are there");
                    if c.members().index() == last {
                        return;
                    }
                    let error = agree(&*c).expect_err("the last rank is gone");
                    check_blame(&error, "lost rank(s)", last);
                    assert!(error.to_string().contains("call 2"), "{error}");
                    check_refusal(&*c, &error);
                });
            }
        }
    }
}

#[test]
fn a_rank_whose_own_call_is_refused_and_that_ends_is_named_by_the_others() {
    for kind in Kind::all() {
        run_communicators(kind, 3, options(Algorithm::Direct), |c| {
            let is_root = c.members().index() == 0;
            // Four rows cannot be dealt out to three ranks: only the root can know.
            let given = zeros(DType::F32, &[if is_root { 4 } else { 0 }]);
            let error = run(&*c, Operation::Scatter { root: 0 }, given).expect_err("uneven");
            if is_root {
                assert!(matches!(error, DistError::InvalidCall { .. }), "{error}");
            } else {
                check_blame(&error, "lost rank(s)", 0);
            }
        });
    }
}

/// The last of `n` ranks stays away from a call until the others have given up, and then comes.
fn check_absence(kind: Kind, n: usize, asynchronous: bool) {
    println!("{kind:?}, {n} ranks, asynchronous: {asynchronous}");
    let timeout = Duration::from_secs(2);
    let options = CommunicatorOptions {
        timeout,
        ..CommunicatorOptions::default()
    };
    let ended = AtomicUsize::new(0);
    // The communicators outlive the closure, so that nobody is taken for gone.
    let outcomes = run_communicators(kind, n, options, |c| {
        agree(&*c).expect("all are there");
        if c.members().index() == n - 1 {
            let deadline = Instant::now() + Duration::from_secs(15);
            if kind == Kind::Mpi {
                // Processes do not share the counter.
                std::thread::sleep(timeout + Duration::from_secs(1));
                ended.store(n - 1, Ordering::SeqCst);
            }
            while ended.load(Ordering::SeqCst) < n - 1 {
                assert!(Instant::now() < deadline, "the others wait for ever");
                std::thread::sleep(Duration::from_millis(5));
            }
            let error = agree(&*c).expect_err("the others gave up");
            check_blame(&error, "no answer from rank(s)", n - 1);
            return (c, error);
        }
        let begun = Instant::now();
        let own = HostBuffer::from_values(vec![1.0f32; 5]);
        let outcome = match asynchronous {
            true => start(&*c, SUM, own).wait(),
            false => run(&*c, SUM, own),
        };
        let error = outcome.expect_err("the last rank does not come");
        if matches!(error, DistError::Timeout { .. }) {
            assert!(begun.elapsed() >= timeout, "{error}");
        }
        ended.fetch_add(1, Ordering::SeqCst);
        check_refusal(&*c, &error);
        check_blame(&error, "no answer from rank(s)", n - 1);
        let text = error.to_string();
        assert!(text.contains("call 1 (all_reduce(sum))"), "{text}");
        (c, error)
    });
    if kind == Kind::Mpi {
        return;
    }
    let (_, waited) = outcomes.split_last().expect("several ranks");
    let is_timeout = |error: &DistError| matches!(error, DistError::Timeout { .. });
    assert!(waited.iter().any(|(_, error)| is_timeout(error)));
}

#[test]
fn a_rank_that_never_comes_is_named_by_all_in_time() {
    if under_mpirun() {
        // One after the other: processes make their groups in one order.
        for asynchronous in [false, true] {
            check_absence(Kind::Mpi, 2, asynchronous);
        }
        return;
    }
    // They only wait, and so all at once.
    std::thread::scope(|scope| {
        for kind in Kind::all() {
            for n in [2, 3] {
                for asynchronous in [false, true] {
                    scope.spawn(move || check_absence(kind, n, asynchronous));
                }
            }
        }
    });
}

/// A rank over its connections, of a group of `n`.
fn process(n: usize, rank: usize, streams: Vec<Option<PeerConnection>>) -> ProcessCommunicator {
    try_process(n, rank, streams).expect("open sockets")
}

fn try_process(
    n: usize,
    rank: usize,
    streams: Vec<Option<PeerConnection>>,
) -> Result<ProcessCommunicator, DistError> {
    let ranks: Vec<usize> = (0..n).collect();
    let members = Members::new("contract", &ranks, rank).expect("a valid group");
    let options = CommunicatorOptions {
        shared_memory: false,
        ..options(Algorithm::Direct)
    };
    ProcessCommunicator::new(members, streams, options, None)
}

type Mesh = Vec<std::sync::Mutex<Option<Vec<Option<PeerConnection>>>>>;

/// Streams that each rank's thread can take, and copies of the last rank's to cut them.
fn mesh(n: usize) -> (Mesh, Vec<TcpStream>) {
    let mesh = tcp_mesh(n);
    let copies = mesh[n - 1].iter().flatten();
    let copies = copies.flat_map(|peer| [&peer.control, &peer.data]);
    let copies = copies.map(|stream| stream.try_clone().expect("a copy"));
    let copies = copies.collect();
    let mesh = mesh.into_iter().map(|own| Some(own).into()).collect();
    (mesh, copies)
}

fn take(mesh: &Mesh, rank: usize) -> Vec<Option<PeerConnection>> {
    let own = mesh[rank].lock().expect("not poisoned").take();
    own.expect("taken once")
}

#[test]
fn a_process_whose_connections_break_is_named_by_all() {
    for n in [2, 3] {
        let (mesh, cut) = mesh(n);
        let errors = run_threads(n, |rank| {
            let c = process(n, rank, take(&mesh, rank));
            agree(&c).expect("all are there");
            if rank == n - 1 {
                for stream in &cut {
                    stream.shutdown(Shutdown::Both).expect("an open connection");
                }
            }
            let error = agree(&c).expect_err("connections are broken");
            check_refusal(&c, &error);
            error
        });
        let (last, others) = errors.split_last().expect("several ranks");
        assert!(matches!(last, DistError::PeerLost { .. }), "{last}");
        for error in others {
            check_blame(error, "lost rank(s)", n - 1);
        }
        let lost = others.iter();
        let lost = lost.filter(|error| matches!(error, DistError::PeerLost { .. }));
        assert!(lost.count() > 0);
    }
}

#[test]
fn a_connection_that_breaks_amid_a_large_array_ends_both_ranks() {
    let (mesh, cut) = mesh(2);
    run_threads(3, |rank| {
        if rank == 2 {
            std::thread::sleep(Duration::from_millis(100));
            for stream in &cut {
                stream.shutdown(Shutdown::Both).expect("an open connection");
            }
            return;
        }
        let c = process(2, rank, take(&mesh, rank));
        let deadline = Instant::now() + Duration::from_secs(15);
        let error = loop {
            assert!(Instant::now() < deadline, "a broken connection goes on");
            if let Err(error) = run(&c, SUM, zeros(DType::F32, &[1_000_000])) {
                break error;
            }
        };
        check_blame(&error, "lost rank(s)", 1 - rank);
        check_refusal(&c, &error);
    });
}

#[test]
fn a_peer_that_speaks_another_protocol_is_named() {
    let greetings: [&[u8]; 3] = [&[0xFF; 64], &[0; 64], b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"];
    for (greeting, connection) in greetings.into_iter().flat_map(|g| [(g, 0), (g, 1)]) {
        let (mesh, mut raw) = mesh(2);
        raw[connection]
            .write_all(greeting)
            .expect("an open connection");
        let error = try_process(2, 0, take(&mesh, 0)).expect_err("this is no rank");
        let text = error.to_string();
        assert!(text.contains("rank 1 answers something else"), "{text}");
    }
    // The same from a rank that was one until then.
    for (greeting, connection) in greetings.into_iter().flat_map(|g| [(g, 0), (g, 1)]) {
        let (mesh, raw) = mesh(2);
        let seen = std::sync::Barrier::new(2);
        run_threads(2, |rank| {
            let c = process(2, rank, take(&mesh, rank));
            agree(&c).expect("both are there");
            if rank == 1 {
                let mut stream = &raw[connection];
                stream.write_all(greeting).expect("an open connection");
                // Stays until the other one has seen it.
                seen.wait();
                return;
            }
            let error = agree(&c).expect_err("this is no rank any more");
            seen.wait();
            check_blame(&error, "does not follow the protocol", 1);
            check_refusal(&c, &error);
        });
    }
}

#[test]
fn an_abort_gives_all_ranks_its_cause_and_the_first_cause_stays() {
    let cause = || DistError::config("the disk is full", "make room");
    for kind in Kind::all() {
        for started in [false, true] {
            let given_up = AtomicBool::new(false);
            run_communicators(kind, 2, options(Algorithm::Direct), |c| {
                agree(&*c).expect("ranks agree");
                if c.members().index() == 0 {
                    // A call that is under way ends with the cause as well.
                    let work = started.then(|| start(&*c, SUM, zeros(DType::F32, &[5])));
                    c.abort(cause());
                    c.abort(DistError::config("something else", "nothing"));
                    given_up.store(true, Ordering::SeqCst);
                    if let Some(work) = work {
                        let ended = work.wait().map(drop);
                        let ended = ended.expect_err("given up");
                        assert_eq!(ended.root_cause(), &cause());
                    }
                    check_refusal(&*c, &cause());
                } else {
                    // Comes when rank 0 has given up: its call cannot end before.
                    let deadline = Instant::now() + Duration::from_secs(10);
                    if kind == Kind::Mpi {
                        std::thread::sleep(Duration::from_millis(300));
                        given_up.store(true, Ordering::SeqCst);
                    }
                    while !given_up.load(Ordering::SeqCst) {
                        assert!(Instant::now() < deadline, "rank 0 does not give up");
                        std::thread::yield_now();
                    }
                    let operation = Operation::AllGather;
                    let error = run(&*c, operation, zeros(DType::F32, &[3]));
                    let error = error.expect_err("rank 0 gave up");
                    match &error {
                        DistError::PeerFailed { peer, cause, .. } => {
                            assert_eq!(*peer, 0);
                            assert!(cause.contains("the disk is full"), "{cause}");
                        }
                        // What rank 0 had started was announced before it gave up, and differs.
                        DistError::Mismatch { differing: 0, .. } if started => {}
                        other => panic!("{other}"),
                    }
                    check_refusal(&*c, &error);
                }
            });
        }
    }
}

#[test]
fn an_abort_beside_a_call_that_is_ending_still_gives_its_cause() {
    for kind in Kind::all() {
        for _ in 0..50 {
            run_communicators(kind, 2, options(Algorithm::Direct), |c| {
                if c.members().index() == 0 {
                    // Two calls: the second one begins or ends while the group is given up.
                    let first = start(&*c, SUM, zeros(DType::F32, &[5]));
                    let second = start(&*c, SUM, zeros(DType::F32, &[5]));
                    first.wait().expect("ranks agree");
                    drop(second);
                    c.abort(DistError::config("the disk is full", "make room"));
                    return;
                }
                let error = loop {
                    if let Err(error) = run(&*c, SUM, zeros(DType::F32, &[5])) {
                        break error;
                    }
                };
                assert!(matches!(error, DistError::PeerFailed { .. }), "{error}");
                assert!(error.to_string().contains("the disk is full"), "{error}");
            });
        }
    }
}

#[test]
fn a_rank_that_panics_tells_the_others() {
    for kind in Kind::all() {
        run_communicators(kind, 3, options(Algorithm::Direct), |c| {
            if c.members().index() == 1 {
                agree(&*c).expect("all are there");
                let panicked = catch_unwind(AssertUnwindSafe(move || {
                    let _group: Arc<dyn Communicator> = c;
                    panic!("this test's own panic");
                }));
                assert!(panicked.is_err());
                return;
            }
            // It may panic before the first call has ended here.
            let both = agree(&*c).and_then(|_| agree(&*c));
            let error = both.expect_err("rank 1 panicked");
            assert!(matches!(error, DistError::PeerFailed { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("rank 1 failed: it panicked"), "{text}");
            assert_eq!(text.matches("rank 1 failed").count(), 1, "{text}");
        });
    }
}
