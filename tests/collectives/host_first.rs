//! Sums inside a host first: their order, to the bit, and what travels between hosts.

use burn::tensor::DType;
use burn_dist::communicator::{Algorithm, Communicator, HostBuffer, Operation, ReduceOp};
use tests::{Kind, run_communicators};

use super::value::random;
use super::{options, run};

const LEN: usize = 2520;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Ranks deal themselves to two hosts: `(x0 + x2 + x4) + (x1 + x3)`.
fn sum_by_hosts(n: usize, i: usize) -> f32 {
    let host = |first: usize| {
        let members = (first..n).step_by(2);
        members
            .map(|rank| random(rank, LEN)[i])
            .reduce(|a, b| a + b)
    };
    [host(0), host(1)]
        .into_iter()
        .flatten()
        .reduce(|a, b| a + b)
        .expect("a rank")
}

fn call(c: &dyn Communicator, operation: Operation, values: Vec<f32>) -> Vec<f32> {
    let output = run(c, operation, HostBuffer::from_values(values));
    output.expect("ranks agree").to_values()
}

#[test]
fn hosts_are_added_in_the_order_of_their_first_ranks() {
    let mut differ = 0;
    for n in 1..=5 {
        let expected: Vec<f32> = (0..LEN).map(|i| sum_by_hosts(n, i)).collect();
        run_communicators(Kind::Mixed, n, options(Algorithm::HostFirst), |c| {
            let rank = c.members().index();
            let sum = call(&*c, Operation::AllReduce(ReduceOp::Sum), random(rank, LEN));
            assert!(bits(&sum) == bits(&expected), "{n} ranks");
            let part = call(
                &*c,
                Operation::ReduceScatter(ReduceOp::Sum),
                random(rank, LEN),
            );
            let own = rank * LEN / n..(rank + 1) * LEN / n;
            assert!(bits(&part) == bits(&expected[own]), "{n} ranks");
        });
        let in_rank_order = run_communicators(Kind::Mixed, n, options(Algorithm::Direct), |c| {
            let own = random(c.members().index(), LEN);
            call(&*c, Operation::AllReduce(ReduceOp::Sum), own)
        });
        let pairs = in_rank_order[0].iter().zip(&expected);
        differ += pairs.filter(|(a, b)| a != b).count();
    }
    assert!(differ > LEN / 20, "the inputs do not show the order");
}

#[test]
fn on_one_host_and_on_as_many_hosts_as_ranks_it_is_the_direct_exchange() {
    for kind in [Kind::InProcess, Kind::SharedMemory, Kind::Mixed] {
        // Two ranks of `Mixed` are on two hosts.
        let n = if kind == Kind::Mixed { 2 } else { 4 };
        let [first, direct] = [Algorithm::HostFirst, Algorithm::Direct].map(|algorithm| {
            run_communicators(kind, n, options(algorithm), |c| {
                let own = random(c.members().index(), LEN);
                let sum = call(&*c, Operation::AllReduce(ReduceOp::Sum), own);
                (bits(&sum), c.traffic().sent)
            })
        });
        assert!(first == direct, "{kind:?}");
    }
}

#[test]
fn hosts_send_each_other_as_many_times_less_as_they_have_ranks() {
    // Two hosts of two.
    let n = 4;
    let s = 4 * LEN as u64;
    let operations: [(Operation, usize, u64); 3] = [
        (Operation::AllReduce(ReduceOp::Sum), LEN, 2 * s * 2 / 4),
        (Operation::ReduceScatter(ReduceOp::Sum), LEN, s * 2 / 4),
        (Operation::AllGather, LEN / n, s * 2 / 4),
    ];
    for (operation, len, formula) in operations {
        let between = |algorithm| {
            let sent = run_communicators(Kind::Mixed, n, options(algorithm), |c| {
                let own = c.members().index();
                run(
                    &*c,
                    operation.clone(),
                    HostBuffer::zeros(DType::F32, vec![len]),
                )
                .expect("ranks agree");
                let sent = c.traffic().sent;
                let elsewhere = (0..n).filter(|other| other % 2 != own % 2);
                elsewhere.map(|other| sent[other]).sum::<u64>()
            });
            // Of the first host, and of the second.
            assert_eq!(sent[0] + sent[2], sent[1] + sent[3]);
            sent[0] + sent[2]
        };
        assert_eq!(between(Algorithm::HostFirst), formula, "{operation:?}");
        assert_eq!(between(Algorithm::Direct), 2 * formula, "{operation:?}");
    }
}
