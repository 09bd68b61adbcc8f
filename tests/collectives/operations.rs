//! Every operation, for every element type and for odd, empty and scalar shapes.

use std::sync::atomic::{AtomicUsize, Ordering};

use burn::tensor::{BoolStore, Bytes, DType};
use burn_dist::DistError;
use burn_dist::communicator::{Communicator, HostBuffer, Operation, ReduceOp};
use tests::{Kind, run_communicators};

use super::value::{Value, for_every_type, input, operand, reduced};
use super::{ALGORITHMS, every, options, run};

const OPS: [ReduceOp; 5] = [
    ReduceOp::Sum,
    ReduceOp::Mean,
    ReduceOp::Max,
    ReduceOp::Min,
    ReduceOp::Product,
];

/// The output of a call that must succeed, its shape and type checked.
fn output<T: Value>(
    c: &dyn Communicator,
    operation: Operation,
    values: Vec<T>,
    shape: &[usize],
    expected_shape: &[usize],
) -> Vec<T> {
    let name = format!("{operation:?} of {shape:?}");
    let values = T::buffer(values).reshaped(shape.to_vec());
    let dtype = values.dtype();
    let output = run(c, operation, values).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(output.shape(), expected_shape, "{name}");
    assert_eq!(output.dtype(), dtype, "{name}");
    T::values(&output)
}

fn check_all_reduce<T: Value>(c: &dyn Communicator) {
    let (n, rank) = (c.members().size(), c.members().index());
    let shapes: [&[usize]; 7] = [&[0], &[1], &[2], &[13], &[3, 0, 2], &[2, 3, 5], &[]];
    for op in OPS {
        for shape in shapes {
            let len = shape.iter().product();
            if reduced::<T>(op, n, 1).is_none() {
                continue;
            }
            let operand = operand::<T>(op, rank, len);
            let sum = output(c, Operation::AllReduce(op), operand, shape, shape);
            assert_eq!(Some(sum), reduced(op, n, len), "{op:?} of {shape:?}");
        }
    }
}

fn check_reduce_scatter<T: Value>(c: &dyn Communicator) {
    let (n, rank) = (c.members().size(), c.members().index());
    for op in OPS {
        for (rows, width) in [(0, 3), (1, 3), (2, 5), (1, 0)] {
            let len = n * rows * width;
            let Some(whole) = reduced::<T>(op, n, len).filter(|_| reduced::<T>(op, n, 1).is_some())
            else {
                continue;
            };
            let part = output(
                c,
                Operation::ReduceScatter(op),
                operand::<T>(op, rank, len),
                &[n * rows, width],
                &[rows, width],
            );
            let own = rank * rows * width..(rank + 1) * rows * width;
            assert_eq!(part, whole[own], "{op:?}, {rows} rows of {width}");
        }
    }
}

fn check_gathers<T: Value>(c: &dyn Communicator) {
    let (n, rank) = (c.members().size(), c.members().index());
    for (rows, width) in [(0, 3), (1, 3), (3, 5), (2, 0)] {
        let len = rows * width;
        let all: Vec<T> = (0..n).flat_map(|r| input::<T>(r, len)).collect();
        let (part, whole) = ([rows, width], [n * rows, width]);
        let own = input::<T>(rank, len);
        let gathered = output(c, Operation::AllGather, own.clone(), &part, &whole);
        assert_eq!(gathered, all);
        for root in 0..n {
            let is_root = rank == root;
            let on_root = |shape| if is_root { shape } else { [0, width] };
            let gathered = output(
                c,
                Operation::Gather { root },
                own.clone(),
                &part,
                &on_root(whole),
            );
            assert_eq!(gathered, if is_root { all.clone() } else { Vec::new() });

            let given = if is_root { all.clone() } else { Vec::new() };
            let scatter = Operation::Scatter { root };
            let scattered = output(c, scatter, given, &on_root(whole), &part);
            assert_eq!(scattered, own);

            let given = match is_root {
                true => input::<T>(root, len),
                false => vec![T::whole(9); len],
            };
            let sent = output(c, Operation::Broadcast { root }, given, &part, &part);
            assert_eq!(sent, input::<T>(root, len));
        }
    }
    let root = n - 1;
    let scalar = output(
        c,
        Operation::Broadcast { root },
        input::<T>(rank, 1),
        &[],
        &[],
    );
    assert_eq!(scalar, input::<T>(root, 1));
}

/// `rows(from, to)` is how many rows travel; rows for lower members come first.
fn check_all_to_all<T: Value>(
    c: &dyn Communicator,
    width: usize,
    rows: impl Fn(usize, usize) -> usize,
) {
    let (n, rank) = (c.members().size(), c.members().index());
    let sent = |from: usize| (0..n).map(|to| rows(from, to)).collect::<Vec<_>>();
    let send_counts = sent(rank);
    let recv_counts: Vec<usize> = (0..n).map(|from| rows(from, rank)).collect();
    let (send, receive): (usize, usize) = (send_counts.iter().sum(), recv_counts.iter().sum());
    let received = output(
        c,
        Operation::AllToAll {
            send_counts,
            recv_counts,
        },
        input::<T>(rank, send * width),
        &[send, width],
        &[receive, width],
    );
    let expected: Vec<T> = (0..n)
        .flat_map(|from| {
            let all = input::<T>(from, sent(from).iter().sum::<usize>() * width);
            let before = sent(from)[..rank].iter().sum::<usize>() * width;
            all[before..before + rows(from, rank) * width].to_vec()
        })
        .collect();
    assert_eq!(received, expected);
}

fn check_exchanges<T: Value>(c: &dyn Communicator) {
    check_all_to_all::<T>(c, 3, |_, _| 2);
    check_all_to_all::<T>(c, 5, |from, to| (from + 2 * to) % 3);
    check_all_to_all::<T>(c, 3, |_, _| 0);
    check_all_to_all::<T>(c, 0, |from, to| from + to);
    // All rows to one member, none to the others.
    check_all_to_all::<T>(c, 1, |_, to| if to == 0 { 7 } else { 0 });
}

#[test]
fn all_reduce_of_every_type_and_size() {
    every(|c, _| {
        for_every_type!(check_all_reduce(&*c));
    });
}

#[test]
fn reduce_scatter_of_every_type_and_size() {
    every(|c, _| {
        for_every_type!(check_reduce_scatter(&*c));
    });
}

#[test]
fn all_gather_gather_scatter_and_broadcast_of_every_type_and_size() {
    every(|c, _| {
        for_every_type!(check_gathers(&*c));
    });
}

#[test]
fn all_to_all_of_every_type_even_and_uneven() {
    every(|c, _| {
        for_every_type!(check_exchanges(&*c));
    });
}

#[test]
fn booleans_move_and_reduce_to_or_and_and() {
    every(|c, _| {
        let (n, rank) = (c.members().size(), c.members().index());
        let dtype = DType::Bool(BoolStore::Native);
        let of = |values: Vec<u8>| {
            let shape = vec![values.len()];
            HostBuffer::new(Bytes::from_bytes_vec(values), dtype, shape)
        };
        // One column per rank that is true there only, one all true, one all false.
        let own = |rank: usize| -> Vec<u8> {
            let single = (0..n).map(|i| u8::from(i == rank));
            single.chain([1, 0]).collect()
        };
        let get = |operation| run(&*c, operation, of(own(rank))).expect("defined for booleans");
        let or = get(Operation::AllReduce(ReduceOp::Max));
        assert_eq!(or.bytes(), [vec![1; n], vec![1, 0]].concat());
        let and = get(Operation::AllReduce(ReduceOp::Min));
        assert_eq!(
            and.bytes(),
            [vec![u8::from(n == 1); n], vec![1, 0]].concat()
        );
        assert_eq!(and.dtype(), dtype);
        let all = get(Operation::AllGather);
        assert_eq!(all.bytes(), (0..n).flat_map(own).collect::<Vec<_>>());
        for op in [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Mean] {
            let refused = run(&*c, Operation::AllReduce(op), of(own(rank)));
            assert!(matches!(refused, Err(DistError::InvalidCall { .. })));
        }
    });
}

#[test]
fn i32_three_and_four_give_seven() {
    for kind in Kind::all() {
        for algorithm in ALGORITHMS {
            let sums = run_communicators(kind, 2, options(algorithm), |c| {
                let own = HostBuffer::from_values(vec![3 + c.members().index() as i32]);
                let sum = run(&*c, Operation::AllReduce(ReduceOp::Sum), own);
                sum.expect("integers add").to_values::<i32>()
            });
            assert!(sums.iter().all(|sum| *sum == [7]), "{sums:?}");
        }
    }
}

#[test]
fn a_large_array_passes_the_buffers_of_the_connections() {
    let len = 1_000_003;
    for kind in Kind::all() {
        for algorithm in ALGORITHMS {
            run_communicators(kind, 3, options(algorithm), |c| {
                let rank = c.members().index();
                let own = HostBuffer::from_values(input::<i32>(rank, len));
                let sum = run(&*c, Operation::AllReduce(ReduceOp::Sum), own.clone());
                let sum = sum.expect("ranks agree").to_values::<i32>();
                assert!(Some(sum) == reduced(ReduceOp::Sum, 3, len));
                let all = run(&*c, Operation::AllGather, own).expect("ranks agree");
                let all = all.to_values::<i32>();
                for (rank, part) in all.chunks(len).enumerate() {
                    assert!(part == input::<i32>(rank, len), "part {rank}");
                }
            });
        }
    }
}

#[test]
fn nobody_passes_a_barrier_before_all_have_come() {
    for kind in Kind::all() {
        for n in 1..=5 {
            let arrived = AtomicUsize::new(0);
            run_communicators(kind, n, options(ALGORITHMS[0]), |c| {
                for round in 1..=20 {
                    arrived.fetch_add(1, Ordering::SeqCst);
                    let empty = HostBuffer::zeros(DType::F32, vec![0]);
                    let passed = run(&*c, Operation::Barrier, empty).expect("all come");
                    assert_eq!(passed.shape(), [0]);
                    let arrived = arrived.load(Ordering::SeqCst);
                    // Processes do not share the counter.
                    let all = if kind == Kind::Mpi { round } else { n * round };
                    assert!(arrived >= all, "{arrived} of {all}");
                }
            });
        }
    }
}

#[test]
fn a_call_that_is_wrong_on_its_own_is_refused_and_harms_nothing() {
    let zeros = |dtype, shape: &[usize]| HostBuffer::zeros(dtype, shape.to_vec());
    every(|c, _| {
        let n = c.members().size();
        let sum = Operation::AllReduce(ReduceOp::Sum);
        let counts = |send_counts: Vec<usize>, recv_counts: Vec<usize>| Operation::AllToAll {
            send_counts,
            recv_counts,
        };
        let f32s = |shape: &[usize]| zeros(DType::F32, shape);
        let mut wrong = vec![
            (
                Operation::AllReduce(ReduceOp::Mean),
                zeros(DType::I32, &[4]),
                "I32",
            ),
            (
                Operation::ReduceScatter(ReduceOp::Mean),
                zeros(DType::U8, &[n]),
                "U8",
            ),
            (Operation::Broadcast { root: n }, f32s(&[4]), "root"),
            (Operation::Gather { root: n + 3 }, f32s(&[4]), "root"),
            (Operation::Scatter { root: n }, f32s(&[n]), "root"),
            (Operation::AllGather, f32s(&[]), "scalar"),
            (Operation::Gather { root: 0 }, f32s(&[]), "scalar"),
            (
                Operation::ReduceScatter(ReduceOp::Sum),
                f32s(&[]),
                "multiple",
            ),
            (
                counts(vec![1; n + 1], vec![1; n + 1]),
                f32s(&[n + 1]),
                "counts",
            ),
            (counts(vec![1; n], vec![1; n]), f32s(&[n + 2]), "counts"),
            (counts(vec![1; n], vec![2; n]), f32s(&[n]), "itself"),
            (counts(vec![0; n], vec![0; n]), f32s(&[]), "scalar"),
            (
                Operation::SendRecv {
                    to: Some(n),
                    from: None,
                    receive: vec![],
                },
                f32s(&[1]),
                "receiver",
            ),
            (
                Operation::SendRecv {
                    to: None,
                    from: Some(n),
                    receive: vec![1],
                },
                f32s(&[0]),
                "sender",
            ),
        ];
        if n > 1 {
            let uneven = f32s(&[n + 1, 2]);
            wrong.push((Operation::ReduceScatter(ReduceOp::Sum), uneven, "multiple"));
        }
        for (operation, given, word) in wrong {
            let name = operation.name();
            match run(&*c, operation, given) {
                Err(DistError::InvalidCall {
                    rank,
                    group,
                    operation,
                    problem,
                    ..
                }) => {
                    assert_eq!(rank, c.members().rank());
                    assert_eq!((&*group, &*operation), (c.members().name(), name));
                    let lower = problem.to_lowercase();
                    assert!(lower.contains(&word.to_lowercase()), "{name}: {problem}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        assert_eq!(c.failure(), None);
        let moved = c.traffic();
        assert_eq!((moved.total_sent(), moved.overhead, moved.calls), (0, 0, 0));
        let sum = run(&*c, sum, HostBuffer::from_values(vec![1i32]));
        assert_eq!(
            sum.expect("the group is sound").to_values::<i32>(),
            [n as i32]
        );
    });
}

#[test]
fn counts_that_no_memory_holds_are_refused() {
    for kind in Kind::all() {
        run_communicators(kind, 2, options(ALGORITHMS[0]), |c| {
            for (send, receive) in [
                (vec![1, 1], vec![1, 1 << 45]),
                (vec![1, 1], vec![1, usize::MAX]),
                (vec![usize::MAX, 3], vec![usize::MAX, 3]),
            ] {
                let operation = Operation::AllToAll {
                    send_counts: send,
                    recv_counts: receive,
                };
                let input = HostBuffer::zeros(DType::F32, vec![2, 3]);
                let refused = run(&*c, operation, input);
                assert!(matches!(refused, Err(DistError::InvalidCall { .. })));
            }
        });
    }
}
