//! Asynchronous calls: they run in the order in which they were started.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use burn::tensor::DType;
use burn_dist::communicator::{
    Algorithm, Communicator, HostBuffer, Operation, RecordingCommunicator, ReduceOp,
};
use tests::{Kind, run_communicators};

use super::value::{input, reduced};
use super::{every, options, run, start};

const SUM: Operation = Operation::AllReduce(ReduceOp::Sum);

fn one(value: f32) -> HostBuffer {
    HostBuffer::from_values(vec![value])
}

#[test]
fn one_and_then_ten_give_three_and_then_thirty() {
    for kind in Kind::all() {
        let sums = run_communicators(kind, 3, options(Algorithm::Direct), |c| {
            let (first, second) = (start(&*c, SUM, one(1.0)), start(&*c, SUM, one(10.0)));
            // Waiting the other way round changes nothing.
            let second = second.wait().expect("ranks agree").to_values::<f32>()[0];
            let first = first.wait().expect("ranks agree").to_values::<f32>()[0];
            (first, second)
        });
        assert!(sums.iter().all(|sum| *sum == (3.0, 30.0)), "{sums:?}");
    }
}

#[test]
fn started_and_run_calls_keep_their_order() {
    every(|c, _| {
        let (n, rank) = (c.members().size(), c.members().index());
        for round in 0..10 {
            // Ranks differ in which calls they start and which they run: only the order counts.
            let mut works = Vec::new();
            for call in 0..6 {
                let value = one((round * 10 + call) as f32);
                match (call + rank + round) % 3 {
                    0 => {
                        let sum = run(&*c, SUM, value).expect("ranks agree");
                        works.push((call, sum));
                    }
                    _ => {
                        let work = start(&*c, SUM, value);
                        if call % 2 == 0 {
                            works.push((call, work.wait().expect("ranks agree")));
                        } else {
                            // Its output is lost; the calls after it are not.
                            drop(work);
                        }
                    }
                }
            }
            for (call, sum) in works {
                let expected = (n * (round * 10 + call)) as f32;
                assert_eq!(sum.to_values::<f32>(), [expected]);
            }
        }
    });
}

#[test]
fn many_started_calls_of_many_kinds_end_in_order() {
    every(|c, _| {
        let (n, rank) = (c.members().size(), c.members().index());
        let works: Vec<_> = (0..30)
            .map(|i| {
                let own = HostBuffer::from_values(input::<i32>(rank, i));
                let operation = match i % 3 {
                    0 => SUM,
                    1 => Operation::AllGather,
                    _ => Operation::Broadcast { root: i % n },
                };
                start(&*c, operation, own)
            })
            .collect();
        for (i, work) in works.into_iter().enumerate() {
            let got = work.wait().expect("ranks agree").to_values::<i32>();
            let expected = match i % 3 {
                0 => reduced(ReduceOp::Sum, n, i).expect("integers add"),
                1 => (0..n).flat_map(|r| input::<i32>(r, i)).collect(),
                _ => input::<i32>(i % n, i),
            };
            assert_eq!(got, expected, "call {i}");
        }
    });
}

#[test]
fn start_returns_before_the_peers_come_and_any_thread_may_wait() {
    for kind in Kind::all() {
        let started = AtomicBool::new(false);
        run_communicators(kind, 2, options(Algorithm::Direct), |c| {
            if c.members().index() == 0 {
                let work = start(&*c, SUM, one(1.0));
                assert!(!work.is_done());
                started.store(true, Ordering::SeqCst);
                let waiter = std::thread::spawn(move || work.wait());
                let sum = waiter.join().expect("no panic").expect("ranks agree");
                assert_eq!(sum.to_values::<f32>(), [3.0]);
            } else {
                if kind == Kind::Mpi {
                    // Processes do not share the flag: rank 0 has time to look.
                    std::thread::sleep(Duration::from_millis(300));
                    started.store(true, Ordering::SeqCst);
                }
                let end = Instant::now() + Duration::from_secs(10);
                while !started.load(Ordering::SeqCst) {
                    assert!(Instant::now() < end, "start waits for the peer");
                    std::thread::sleep(Duration::from_millis(1));
                }
                run(&*c, SUM, one(2.0)).expect("ranks agree");
            }
        });
    }
}

#[test]
fn a_group_that_is_dropped_ends_its_started_calls_first() {
    for kind in Kind::all() {
        let sums = run_communicators(kind, 3, options(Algorithm::Direct), |c| {
            let works = [1.0, 2.0, 3.0].map(|value| start(&*c, SUM, one(value)));
            drop(c);
            works.map(|work| work.wait().expect("ranks agree").to_values::<f32>()[0])
        });
        assert!(sums.iter().all(|sum| *sum == [3.0, 6.0, 9.0]), "{sums:?}");
    }
}

#[test]
fn a_recording_lists_the_calls_in_order() {
    for kind in Kind::all() {
        run_communicators(kind, 2, options(Algorithm::Direct), |inner| {
            let c = RecordingCommunicator::new(inner.clone());
            let begun = Instant::now();
            let zeros = |dtype, shape: &[usize]| HostBuffer::zeros(dtype, shape.to_vec());
            let first = start(&c, SUM, zeros(DType::F32, &[3, 5]));
            let second = start(&c, Operation::AllGather, zeros(DType::BF16, &[7]));
            run(&c, Operation::Barrier, zeros(DType::U8, &[0])).expect("ranks agree");
            first.wait().expect("ranks agree");
            second.wait().expect("ranks agree");
            let root = Operation::Broadcast { root: 1 };
            run(&c, root.clone(), zeros(DType::I64, &[2, 0])).expect("ranks agree");

            let calls = c.calls();
            let seen: Vec<_> = calls
                .iter()
                .map(|call| {
                    let operation = call.operation.clone();
                    (
                        call.number,
                        operation,
                        call.dtype,
                        call.shape.clone(),
                        call.bytes,
                    )
                })
                .collect();
            let expected = [
                (0, SUM, DType::F32, vec![3, 5], 60),
                (1, Operation::AllGather, DType::BF16, vec![7], 14),
                (2, Operation::Barrier, DType::U8, vec![0], 0),
                (3, root, DType::I64, vec![2, 0], 0),
            ];
            assert_eq!(seen, expected);
            assert!(calls.is_sorted_by_key(|call| call.started) && calls[0].started >= begun);

            c.clear();
            run(&c, SUM, one(1.0)).expect("ranks agree");
            let numbers: Vec<u64> = c.calls().iter().map(|call| call.number).collect();
            assert_eq!(numbers, [4]);

            assert_eq!(c.traffic(), inner.traffic());
            assert_eq!(c.traffic().calls, 5);
            assert_eq!(c.members(), inner.members());
            assert_eq!(c.failure(), None);
        });
    }
}

#[test]
fn a_recording_keeps_the_last_calls() {
    let recorded = run_communicators(Kind::InProcess, 1, options(Algorithm::Direct), |c| {
        let c = RecordingCommunicator::new(Arc::clone(&c));
        for _ in 0..RecordingCommunicator::CAPACITY + 5 {
            run(&c, Operation::Barrier, one(0.0)).expect("alone");
        }
        let calls = c.calls();
        (calls.len(), calls[0].number)
    });
    assert_eq!(recorded, [(RecordingCommunicator::CAPACITY, 5)]);
}

#[test]
fn a_timeout_without_end_is_one() {
    for kind in Kind::all() {
        let options = burn_dist::communicator::CommunicatorOptions {
            timeout: Duration::MAX,
            startup_timeout: Duration::MAX,
            ..options(Algorithm::Direct)
        };
        run_communicators(kind, 2, options, |c| {
            let sum = run(&*c, SUM, one(1.0)).expect("ranks agree");
            assert_eq!(sum.to_values::<f32>(), [2.0]);
        });
    }
}
