use std::sync::atomic::Ordering;
use std::time::Duration;

use burn::tensor::BoolStore;

use super::super::fake_ranks::{SUM, machines, on_ranks, options};
use super::*;
use crate::communicator::ReduceOp;

#[test]
fn a_call_stands_between_what_the_device_does_before_and_after() {
    let log = on_ranks(machines(2), options(), |rank| {
        let rank = rank.expect("they meet");
        let inits = rank.machine.take_log();
        let work = rank.start(SUM, DType::F32, &[2, 3]).expect("a good call");
        let started = rank.machine.take_log();
        let is_done = work.is_done();
        work.wait().expect("no failure");
        let waited = rank.machine.take_log();
        drop(rank.start(SUM, DType::F32, &[2, 3]).expect("a good call"));
        let dropped = rank.machine.take_log();
        let (machine, index) = (rank.machine.clone(), rank.index);
        drop(rank);
        (
            index,
            inits,
            started,
            is_done,
            waited,
            dropped,
            machine.take_log(),
        )
    });
    for (index, inits, started, is_done, waited, dropped, ended) in log {
        assert_eq!(
            inits,
            [format!("init {index} of 2, own id: true, blocking: 0")]
        );
        let call = "all_reduce(1000 to 5000, 6 of 7, op 0)";
        let submitted = [
            "the device's work is noted",
            "the stream waits",
            call,
            "the stream's work is noted",
        ];
        assert_eq!(started, submitted);
        assert!(is_done);
        let joined = ["the device waits", "memory is given back"];
        assert_eq!(waited, joined);
        assert_eq!(dropped, [&submitted[..], &joined[..]].concat());
        assert_eq!(ended, ["finalize", "destroy"]);
    }
}

#[test]
fn operations_are_ncclss() {
    let two = on_ranks(machines(2), options(), |rank| {
        let rank = rank.expect("they meet");
        let scatter = Operation::ReduceScatter(ReduceOp::Max);
        let mut calls = Vec::new();
        let mean = Operation::AllReduce(ReduceOp::Mean);
        calls.extend(rank.calls(mean, DType::BF16, &[5]));
        calls.extend(rank.calls(scatter, DType::I64, &[4, 3]));
        calls.extend(rank.calls(Operation::AllGather, DType::F16, &[4, 3]));
        calls.extend(rank.calls(Operation::Broadcast { root: 1 }, DType::F64, &[]));
        let or = Operation::AllReduce(ReduceOp::Max);
        calls.extend(rank.calls(or, DType::Bool(BoolStore::Native), &[7]));
        for op in [ReduceOp::Product, ReduceOp::Min] {
            calls.extend(rank.calls(Operation::AllReduce(op), DType::U8, &[2]));
        }
        calls.extend(rank.calls(Operation::Barrier, DType::U8, &[0]));
        calls.extend(rank.calls(SUM, DType::F32, &[0, 3]));
        calls
    });
    for calls in two {
        let right = [
            "all_reduce(1000 to 5000, 5 of 9, op 4)",
            "reduce_scatter(1000 to 5000, 6 of 4, op 2)",
            "all_gather(1000 to 5000, 12 of 6)",
            "broadcast(1000 to 5000, 1 of 8, root 1)",
            "all_reduce(1000 to 5000, 7 of 1, op 2)",
            "all_reduce(1000 to 5000, 2 of 1, op 1)",
            "all_reduce(1000 to 5000, 2 of 1, op 3)",
            "all_reduce(1 of 1, op 2)",
        ];
        assert_eq!(calls, right);
    }
}

#[test]
fn pairs_are_grouped() {
    let calls = on_ranks(machines(3), options(), |rank| {
        let rank = rank.expect("they meet");
        let sent = [[1, 2, 0], [0, 1, 1], [2, 0, 0]];
        let operation = Operation::AllToAll {
            send_counts: sent[rank.index].to_vec(),
            recv_counts: sent.iter().map(|row| row[rank.index]).collect(),
        };
        let rows = sent[rank.index].iter().sum();
        let mut calls = rank.calls(operation, DType::F32, &[rows, 10]);
        let ring = |receive: Vec<usize>| Operation::SendRecv {
            to: Some((rank.index + 1) % 3),
            from: Some((rank.index + 2) % 3),
            receive,
        };
        // What only moves may be of a type that NCCL has not.
        calls.extend(rank.calls(ring(vec![2, 2]), DType::I16, &[2, 2]));
        calls.extend(rank.calls(ring(vec![0]), DType::F32, &[0]));
        let half = match rank.index {
            0 => Operation::SendRecv {
                to: Some(2),
                from: None,
                receive: vec![],
            },
            2 => Operation::SendRecv {
                to: None,
                from: Some(0),
                receive: vec![3],
            },
            _ => return calls,
        };
        let shape: &[usize] = if rank.index == 0 { &[3] } else { &[0] };
        calls.extend(rank.calls(half, DType::F32, shape));
        calls
    });
    // 10 f32 a row are 40 bytes.
    assert_eq!(
        calls[0],
        [
            "group",
            "send(1000, 10 of 7, to 0)",
            "send(1040, 20 of 7, to 1)",
            "recv(5000, 10 of 7, from 0)",
            "recv(5040, 20 of 7, from 2)",
            "end",
            "group",
            "send(1000, 8 of 1, to 1)",
            "recv(5000, 8 of 1, from 2)",
            "end",
            "group",
            "send(1000, 3 of 7, to 2)",
            "end",
        ]
    );
    assert_eq!(
        calls[1][..6],
        [
            "group",
            "send(1000, 10 of 7, to 1)",
            "send(1040, 10 of 7, to 2)",
            "recv(5000, 20 of 7, from 0)",
            "recv(5080, 10 of 7, from 1)",
            "end",
        ]
    );
    assert_eq!(
        calls[2][8..],
        ["group", "recv(5000, 3 of 7, from 0)", "end"]
    );
}

#[test]
fn members_that_call_different_things_do_not_reach_nccl() {
    type Call = (Operation, DType, Vec<usize>);
    let differing: [fn(usize) -> Call; 5] = [
        |rank| (SUM, DType::F32, vec![4 + rank]),
        |rank| (SUM, [DType::F32, DType::I32][rank], vec![4]),
        |rank| {
            (
                [SUM, Operation::AllGather][rank].clone(),
                DType::F32,
                vec![4],
            )
        },
        |rank| {
            let (send_counts, recv_counts) = (vec![1, 1], vec![1 - rank, 1]);
            let recv_counts = if rank == 0 {
                vec![1, 2]
            } else {
                recv_counts.into_iter().map(|_| 1).collect()
            };
            (
                Operation::AllToAll {
                    send_counts,
                    recv_counts,
                },
                DType::F32,
                vec![2, 3],
            )
        },
        |rank| {
            let (to, from, receive) = (Some(1 - rank), Some(1 - rank), vec![3 + rank]);
            (
                Operation::SendRecv { to, from, receive },
                DType::F32,
                vec![3],
            )
        },
    ];
    for make in differing {
        let errors = on_ranks(machines(2), options(), move |rank| {
            let rank = rank.expect("they meet");
            rank.machine.take_log();
            let (operation, dtype, shape) = make(rank.index);
            let error = rank
                .start(operation, dtype, &shape)
                .expect_err("they differ");
            let again = rank
                .start(SUM, DType::F32, &[1])
                .expect_err("the group failed");
            assert!(matches!(again, DistError::Poisoned { .. }), "{again}");
            let mut log = rank.machine.take_log();
            log.retain(|text| text != "memory is given back");
            (error, log)
        });
        for (error, log) in &errors {
            assert!(log.is_empty(), "{log:?}");
            let peers = matches!(
                error,
                DistError::PeerFailed { .. } | DistError::PeerLost { .. }
            );
            assert!(
                matches!(error, DistError::Mismatch { .. }) || peers,
                "{error}"
            );
        }
        let named = errors
            .iter()
            .any(|(error, _)| matches!(error, DistError::Mismatch { .. }));
        assert!(named, "{errors:?}");
    }
}

#[test]
fn a_member_that_calls_for_host_memory_differs() {
    let errors = on_ranks(machines(2), options(), |rank| {
        let rank = rank.expect("they meet");
        match rank.index {
            0 => rank
                .start(SUM, DType::F32, &[4])
                .map(drop)
                .expect_err("they differ"),
            _ => {
                let buffer = crate::communicator::HostBuffer::from_values(vec![0f32; 4]);
                let call = crate::communicator::Call::new(SUM, buffer);
                rank.communicator
                    .run(call)
                    .map(drop)
                    .expect_err("they differ")
            }
        }
    });
    assert!(
        errors
            .iter()
            .any(|error| matches!(error, DistError::Mismatch { .. })),
        "{errors:?}"
    );
}

#[test]
fn what_nccl_cannot_do_is_refused_and_the_group_stays_good() {
    on_ranks(machines(2), options(), |rank| {
        let rank = rank.expect("they meet");
        let refused = [
            (SUM, DType::I16, vec![4]),
            (Operation::AllReduce(ReduceOp::Mean), DType::I32, vec![4]),
            (Operation::ReduceScatter(ReduceOp::Sum), DType::F32, vec![3]),
            (Operation::Gather { root: 0 }, DType::F32, vec![4]),
            (Operation::Broadcast { root: 2 }, DType::F32, vec![4]),
        ];
        for (operation, dtype, shape) in refused {
            let error = rank.start(operation, dtype, &shape).expect_err("refused");
            assert!(matches!(error, DistError::InvalidCall { .. }), "{error}");
        }
        assert_eq!(rank.calls(SUM, DType::F32, &[4]).len(), 1);
    });
}

#[test]
fn a_part_of_a_group_comes_out_of_its_communicator() {
    let calls = on_ranks(machines(4), options(), |rank| {
        let rank = rank.expect("they meet");
        // As the second axis of a mesh of 2 x 2: 0 and 2, 1 and 3.
        let (first, index) = (rank.index % 2, rank.index / 2);
        let members = Members::new("part", &[first, first + 2], rank.index).expect("members");
        let inner = Arc::new(rank.hub.connect(&members, options(), None));
        rank.machine.take_log();
        let device = rank.communicator.device().expect("it has one");
        let part = device.split(inner, options()).expect("they part");
        let split = rank.machine.take_log();
        assert_eq!(split, [format!("split {first} {index}")]);
        let part = rank.beside(part);
        let calls = part.calls(Operation::AllGather, DType::F32, &[2]);
        // The whole goes first and ends in order, and the part still works.
        rank.machine.take_log();
        let machine = rank.machine.clone();
        drop(rank);
        assert_eq!(machine.take_log(), ["finalize", "destroy"]);
        part.calls(SUM, DType::F32, &[1]);
        calls
    });
    for calls in calls {
        assert_eq!(calls, ["all_gather(1000 to 5000, 2 of 7)"]);
    }
}

#[test]
fn a_part_that_does_not_come_ends_the_whole() {
    let short = CommunicatorOptions {
        startup_timeout: Duration::from_millis(300),
        ..options()
    };
    on_ranks(machines(2), short, move |rank| {
        let rank = rank.expect("they meet");
        let members = Members::new("part", &[0, 1], rank.index).expect("members");
        let inner = Arc::new(rank.hub.connect(&members, short, None));
        rank.machine.in_progress.store(i32::MAX, Ordering::SeqCst);
        let device = rank.communicator.device().expect("it has one");
        let error = device.split(inner, short).expect_err("it does not come");
        assert!(matches!(error, DistError::Rendezvous { .. }), "{error}");
        let error = rank
            .start(SUM, DType::F32, &[1])
            .expect_err("the whole failed");
        assert!(matches!(error, DistError::Poisoned { .. }), "{error}");
        assert!(rank.machine.log().contains(&"abort".into()));
    });
}

#[test]
fn traffic_counts_what_stays_on_the_device() {
    for check_calls in [true, false] {
        let options = CommunicatorOptions {
            check_calls,
            ..options()
        };
        on_ranks(machines(2), options, |rank| {
            let rank = rank.expect("they meet");
            let before = rank.communicator.traffic();
            rank.calls(SUM, DType::F32, &[2, 3]);
            let moved = &rank.communicator.traffic() - &before;
            // 2S(n-1)/n.
            assert_eq!((moved.total_sent(), moved.total_received()), (24, 24));
            assert_eq!(moved.calls, 1);
            rank.start(SUM, DType::I16, &[4]).expect_err("refused");
            let moved = &rank.communicator.traffic() - &before;
            assert_eq!((moved.total_sent(), moved.calls), (24, 1));
        });
    }
}
