//! What every rank gets when ranks call different things at the same place.

use burn::tensor::DType;
use burn_dist::DistError;
use burn_dist::communicator::{Algorithm, HostBuffer, Operation, ReduceOp};
use tests::{Kind, run_communicators};

use super::faults::{SUM, agree, check_refusal, zeros};
use super::{options, run, start};

/// Two good calls, then one in which `call(rank)` differs between rank 0 and the others. Every rank
/// must get an error that holds all `words`; two ranks must each name the other.
fn check_mismatch(words: &[&str], call: impl Fn(usize, usize) -> (Operation, HostBuffer) + Sync) {
    for kind in Kind::all() {
        for n in [2, 3] {
            println!("{kind:?}, {n} ranks: {words:?}");
            run_communicators(kind, n, options(Algorithm::Direct), |c| {
                let rank = c.members().index();
                agree(&*c).expect("ranks agree");
                agree(&*c).expect("ranks agree");
                let (operation, given) = call(rank, n);
                let error = run(&*c, operation, given).expect_err("ranks disagree");
                let text = error.to_string();
                assert!(text.contains("call 2"), "{text}");
                for word in words {
                    assert!(text.contains(word), "{word} is not in: {text}");
                }
                match &error {
                    DistError::Mismatch {
                        rank: own,
                        group,
                        sequence,
                        differing,
                        ..
                    } => {
                        assert_eq!((*own, &**group, *sequence), (rank, "contract", 2));
                        assert!(
                            *differing != rank && (rank == 0 || *differing == 0),
                            "{text}"
                        );
                    }
                    // With three ranks another one may see it first and say so.
                    DistError::PeerFailed { .. } if n > 2 => {}
                    other => panic!("{other}"),
                }
                check_refusal(&*c, &error);
            });
        }
    }
}

#[test]
fn all_reduce_of_four_and_of_five_names_both_shapes() {
    check_mismatch(&["all_reduce(sum)", "[4]", "[5]"], |rank, _| {
        (SUM, zeros(DType::F32, &[if rank == 0 { 4 } else { 5 }]))
    });
}

#[test]
fn reduce_then_gather_against_gather_then_reduce_names_both_operations() {
    check_mismatch(&["all_reduce", "all_gather"], |rank, _| {
        let operation = if rank == 0 { SUM } else { Operation::AllGather };
        (operation, zeros(DType::F32, &[4]))
    });
    // The same when both calls of each rank are already under way.
    for kind in Kind::all() {
        run_communicators(kind, 2, options(Algorithm::Direct), |c| {
            let mut order = [SUM, Operation::AllGather];
            if c.members().index() == 1 {
                order.reverse();
            }
            let works = order.map(|operation| start(&*c, operation, zeros(DType::F32, &[4])));
            let [first, second] = works.map(|work| work.wait().expect_err("another order"));
            let text = first.to_string();
            for word in ["call 0", "all_reduce", "all_gather"] {
                assert!(text.contains(word), "{word} is not in: {text}");
            }
            assert!(matches!(second, DistError::Poisoned { .. }), "{second}");
            assert_eq!(second.root_cause(), &first);
        });
    }
}

#[test]
fn another_type_root_reduction_or_count_is_named() {
    check_mismatch(&["f32", "f64"], |rank, _| {
        let dtype = if rank == 0 { DType::F32 } else { DType::F64 };
        (SUM, zeros(dtype, &[4]))
    });
    check_mismatch(&["broadcast(root 0)", "broadcast(root 1)"], |rank, _| {
        let root = rank.min(1);
        (Operation::Broadcast { root }, zeros(DType::F32, &[4]))
    });
    check_mismatch(&["gather(root 0)", "scatter(root 0)"], |rank, n| {
        let operation = match rank {
            0 => Operation::Scatter { root: 0 },
            _ => Operation::Gather { root: 0 },
        };
        (operation, zeros(DType::F32, &[n]))
    });
    check_mismatch(&["all_reduce(sum)", "all_reduce(max)"], |rank, _| {
        let op = if rank == 0 {
            ReduceOp::Sum
        } else {
            ReduceOp::Max
        };
        (Operation::AllReduce(op), zeros(DType::F32, &[4]))
    });
    check_mismatch(&["barrier", "reduce_scatter(mean)"], |rank, n| {
        let operation = match rank {
            0 => Operation::Barrier,
            _ => Operation::ReduceScatter(ReduceOp::Mean),
        };
        (operation, zeros(DType::F32, &[n]))
    });
    check_mismatch(&["scatter(root 0)", "f16", "u8"], |rank, n| {
        let (dtype, rows) = match rank {
            0 => (DType::F16, n),
            _ => (DType::U8, 0),
        };
        (Operation::Scatter { root: 0 }, zeros(dtype, &[rows]))
    });
}

#[test]
fn all_to_all_counts_that_do_not_mirror_are_refused_by_all() {
    // Rank 0 sends one row to each, the others expect two from rank 0.
    check_mismatch(&["all_to_all", "rows"], |rank, n| {
        let mut recv_counts = vec![1; n];
        if rank > 0 {
            recv_counts[0] = 2;
        }
        let operation = Operation::AllToAll {
            send_counts: vec![1; n],
            recv_counts,
        };
        (operation, zeros(DType::F32, &[n, 2]))
    });
}
