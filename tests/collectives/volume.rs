//! Bytes counted against bytes by formula.

use burn::tensor::DType;
use burn_dist::communicator::{
    Algorithm, Communicator, HostBuffer, Operation, ReduceOp, Traffic, all_gather_elements_sent,
    all_reduce_elements_sent, reduce_scatter_elements_sent,
};
use tests::{Kind, run_communicators};

use super::{every, every_of, options, run};

/// What each rank sends does not depend on who shares a host with whom.
const FLAT: [Algorithm; 3] = [Algorithm::Direct, Algorithm::Ring, Algorithm::Centralized];

/// What one call moves.
fn moved(c: &dyn Communicator, operation: Operation, dtype: DType, shape: &[usize]) -> Traffic {
    let before = c.traffic();
    run(c, operation, HostBuffer::zeros(dtype, shape.to_vec())).expect("ranks agree");
    let moved = &c.traffic() - &before;
    let own = c.members().index();
    assert_eq!((moved.sent[own], moved.received[own]), (0, 0));
    assert_eq!(moved.calls, 1);
    assert_eq!(moved.overhead > 0, c.members().size() > 1);
    moved
}

const SUM: ReduceOp = ReduceOp::Sum;

#[test]
fn reductions_and_gathers_send_what_the_formulas_say() {
    every_of(&FLAT, |c, algorithm| {
        let (n, index) = (c.members().size(), c.members().index());
        for dtype in [DType::F32, DType::I64, DType::U8] {
            let size = dtype.size();
            for len in [0, 1, 2, 7, 60, 1001] {
                let sent = moved(&*c, Operation::AllReduce(SUM), dtype, &[len]).total_sent();
                let formula = size * all_reduce_elements_sent(algorithm, len, n, index);
                assert_eq!(sent, formula as u64, "all_reduce of {len}");

                let whole = [n * len, 3];
                let sent = moved(&*c, Operation::ReduceScatter(SUM), dtype, &whole).total_sent();
                let elements = reduce_scatter_elements_sent(algorithm, 3 * n * len, n, index);
                assert_eq!(
                    sent,
                    (size * elements) as u64,
                    "reduce_scatter of {whole:?}"
                );

                let sent = moved(&*c, Operation::AllGather, dtype, &[len, 3]).total_sent();
                let elements = all_gather_elements_sent(algorithm, 3 * n * len, n, index);
                assert_eq!(sent, (size * elements) as u64, "all_gather to {whole:?}");
            }
        }
    });
}

#[test]
fn direct_and_ring_send_two_s_n_minus_one_over_n_and_the_server_is_the_bottleneck() {
    // A multiple of 1 to 5: every rank sends the same.
    let elements = 60 * 7;
    let s = 4 * elements as u64;
    every_of(&FLAT, |c, algorithm| {
        let (n, index) = (c.members().size() as u64, c.members().index());
        let moved = moved(&*c, Operation::AllReduce(SUM), DType::F32, &[elements]);
        let (sent, received) = (moved.total_sent(), moved.total_received());
        match algorithm {
            Algorithm::Direct | Algorithm::Ring => {
                let expected = 2 * s * (n - 1) / n;
                assert_eq!((sent, received), (expected, expected));
            }
            Algorithm::Centralized if index == 0 => {
                assert_eq!((sent, received), (s * (n - 1), s * (n - 1)));
            }
            Algorithm::Centralized => assert_eq!((sent, received), (s, s)),
            Algorithm::HostFirst => unreachable!("not among them"),
        }
        let talks_to: Vec<usize> = (0..n as usize).filter(|&i| moved.sent[i] > 0).collect();
        let expected: Vec<usize> = match algorithm {
            _ if n == 1 => Vec::new(),
            Algorithm::Ring => vec![(index + 1) % n as usize],
            Algorithm::Centralized if index > 0 => vec![0],
            _ => (0..n as usize).filter(|&i| i != index).collect(),
        };
        assert_eq!(talks_to, expected);
    });
}

#[test]
fn one_mebibyte_moves_the_published_bytes() {
    for kind in Kind::all() {
        for algorithm in [Algorithm::Direct, Algorithm::Ring] {
            for (n, published) in [
                (2, 1_048_576.0),
                (3, 1_398_101.33),
                (4, 1_572_864.0),
                (8, 1_835_008.0),
            ] {
                let sent = run_communicators(kind, n, options(algorithm), |c| {
                    let shape = [(1 << 20) / 4];
                    moved(&*c, Operation::AllReduce(SUM), DType::F32, &shape).total_sent()
                });
                if kind == Kind::Mpi {
                    // A process knows its own count only; the formulas are checked above.
                    continue;
                }
                let mean = sent.iter().sum::<u64>() as f64 / n as f64;
                assert!((mean - published).abs() < 0.01, "{algorithm:?} {n}: {mean}");
            }
        }
    }
}

#[test]
fn what_one_rank_sends_the_other_receives() {
    for kind in Kind::all() {
        for algorithm in super::ALGORITHMS {
            for n in 2..=5 {
                let traffic = run_communicators(kind, n, options(algorithm), |c| {
                    let (send_counts, recv_counts) = counts(n, c.members().index());
                    let rows = send_counts.iter().sum();
                    let exchange = Operation::AllToAll {
                        send_counts,
                        recv_counts,
                    };
                    moved(&*c, Operation::AllReduce(SUM), DType::F32, &[1001]);
                    moved(&*c, Operation::ReduceScatter(SUM), DType::BF16, &[n * 3]);
                    moved(&*c, Operation::AllGather, DType::I64, &[5]);
                    moved(&*c, exchange, DType::F64, &[rows, 3]);
                    c.traffic()
                });
                if kind == Kind::Mpi {
                    continue;
                }
                for from in 0..n {
                    for to in 0..n {
                        assert_eq!(traffic[from].sent[to], traffic[to].received[from]);
                    }
                }
            }
        }
    }
}

/// Uneven rows from every rank to every rank, as rank `index` counts them.
fn counts(n: usize, index: usize) -> (Vec<usize>, Vec<usize>) {
    let rows = |from: usize, to: usize| (from + 2 * to) % 3;
    let send = (0..n).map(|to| rows(index, to)).collect();
    let receive = (0..n).map(|from| rows(from, index)).collect();
    (send, receive)
}

#[test]
fn operations_without_a_reduction_send_each_byte_once() {
    every(|c, _| {
        let (n, index) = (c.members().size(), c.members().index());
        let row = 3 * 4;
        let sent = |operation, shape: &[usize]| {
            moved(&*c, operation, DType::F32, shape).total_sent() as usize
        };
        for root in [0, n - 1] {
            let is_root = index == root;
            let on = |is: bool, bytes: usize| if is { bytes } else { 0 };
            let broadcast = sent(Operation::Broadcast { root }, &[5, 3]);
            assert_eq!(broadcast, on(is_root, (n - 1) * 5 * row));
            let gather = sent(Operation::Gather { root }, &[5, 3]);
            assert_eq!(gather, on(!is_root, 5 * row));
            let rows = if is_root { 5 * n } else { 0 };
            let scatter = sent(Operation::Scatter { root }, &[rows, 3]);
            assert_eq!(scatter, on(is_root, (n - 1) * 5 * row));
        }
        let (send_counts, recv_counts) = counts(n, index);
        let rows: usize = send_counts.iter().sum();
        let own = send_counts[index];
        let exchange = Operation::AllToAll {
            send_counts,
            recv_counts,
        };
        assert_eq!(sent(exchange, &[rows, 3]), (rows - own) * row);
        assert_eq!(sent(Operation::Barrier, &[0]), 0);
    });
}

#[test]
fn sixteen_bits_double_the_first_half_of_a_ring_only() {
    for kind in Kind::all() {
        for algorithm in FLAT {
            for n in 2..=4 {
                run_communicators(kind, n, options(algorithm), |c| {
                    let (len, index) = (60, c.members().index());
                    let whole = [len];
                    let scatter = moved(&*c, Operation::ReduceScatter(SUM), DType::BF16, &whole);
                    let width = if algorithm == Algorithm::Ring { 4 } else { 2 };
                    let elements = reduce_scatter_elements_sent(algorithm, len, n, index);
                    assert_eq!(scatter.total_sent(), (width * elements) as u64);
                    let reduce = moved(&*c, Operation::AllReduce(SUM), DType::BF16, &whole);
                    let rest = all_reduce_elements_sent(algorithm, len, n, index) - elements;
                    let expected = width * elements + 2 * rest;
                    assert_eq!(reduce.total_sent(), expected as u64);
                });
            }
        }
    }
}
