//! In which order the ranks' values are added, to the bit.

use burn::tensor::bf16;
use burn_dist::communicator::{Algorithm, Chunks, Communicator, HostBuffer, Operation, ReduceOp};
use tests::{Kind, run_communicators};

use super::value::random;
use super::{options, run};

const LEN: usize = 2500;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// `((x[first] + x[first+1]) + ...)` around the group, at place `i`.
fn rotated_sum(inputs: &[Vec<f32>], first: usize, i: usize) -> f32 {
    let n = inputs.len();
    let mut sum = inputs[first % n][i];
    for step in 1..n {
        sum += inputs[(first + step) % n][i];
    }
    sum
}

fn inputs(n: usize) -> Vec<Vec<f32>> {
    (0..n).map(|rank| random(rank, LEN)).collect()
}

fn all_reduce(c: &dyn Communicator, op: ReduceOp, values: &[f32]) -> Vec<f32> {
    let values = HostBuffer::from_values(values.to_vec());
    run(c, Operation::AllReduce(op), values)
        .expect("ranks agree")
        .to_values()
}

/// What each rank got for the sum of random values.
fn sums(kind: Kind, algorithm: Algorithm, n: usize) -> Vec<Vec<f32>> {
    run_communicators(kind, n, options(algorithm), |c| {
        all_reduce(&*c, ReduceOp::Sum, &random(c.members().index(), LEN))
    })
}

#[test]
fn the_inputs_show_the_order() {
    let inputs = inputs(3);
    let differ = (0..LEN).filter(|&i| rotated_sum(&inputs, 0, i) != rotated_sum(&inputs, 1, i));
    assert!(differ.count() > LEN / 20);
}

#[test]
fn direct_and_centralized_add_in_rank_order_over_every_transport() {
    for n in 1..=5 {
        let inputs = inputs(n);
        let expected: Vec<f32> = (0..LEN).map(|i| rotated_sum(&inputs, 0, i)).collect();
        for kind in Kind::all() {
            for algorithm in [Algorithm::Direct, Algorithm::Centralized] {
                for sum in sums(kind, algorithm, n) {
                    assert!(bits(&sum) == bits(&expected), "{kind:?} {algorithm:?} {n}");
                }
            }
        }
    }
}

#[test]
fn a_ring_adds_in_the_rotated_order_and_agrees_within_rounding() {
    for n in 1..=5 {
        let inputs = inputs(n);
        let chunks = Chunks::new(LEN, n);
        let expected: Vec<f32> = (0..n)
            .flat_map(|c| chunks.range(c).map(move |i| (c, i)))
            .map(|(c, i)| rotated_sum(&inputs, c + 1, i))
            .collect();
        for kind in Kind::all() {
            for sum in sums(kind, Algorithm::Ring, n) {
                assert!(bits(&sum) == bits(&expected), "{kind:?} {n}");
                for (i, value) in sum.iter().enumerate() {
                    let size: f32 = inputs.iter().map(|x| x[i].abs()).sum();
                    let difference = (value - rotated_sum(&inputs, 0, i)).abs();
                    assert!(difference <= n as f32 * f32::EPSILON * size, "place {i}");
                }
            }
        }
    }
}

#[test]
fn the_mean_divides_once_after_the_sum() {
    for kind in Kind::all() {
        for algorithm in super::ALGORITHMS {
            run_communicators(kind, 3, options(algorithm), |c| {
                let own = random(c.members().index(), LEN);
                let mut sum = all_reduce(&*c, ReduceOp::Sum, &own);
                sum.iter_mut().for_each(|value| *value /= 3.0);
                let mean = all_reduce(&*c, ReduceOp::Mean, &own);
                assert!(bits(&mean) == bits(&sum), "{kind:?} {algorithm:?}");
            });
        }
    }
}

#[test]
fn parts_and_the_whole_have_the_same_bits() {
    for kind in Kind::all() {
        for n in 2..=5 {
            run_communicators(kind, n, options(Algorithm::Direct), |c| {
                let rank = c.members().index();
                // 2520 is a multiple of 1 to 5, and so of every number of ranks.
                let own = random(rank, 2520);
                let whole = all_reduce(&*c, ReduceOp::Sum, &own);
                for size in [1000, 7 * 72, 2519] {
                    let parts: Vec<f32> = own
                        .chunks(size)
                        .flat_map(|part| all_reduce(&*c, ReduceOp::Sum, part))
                        .collect();
                    assert!(bits(&parts) == bits(&whole), "parts of {size}");
                }
                let scattered = run(
                    &*c,
                    Operation::ReduceScatter(ReduceOp::Sum),
                    HostBuffer::from_values(own),
                );
                let scattered = scattered.expect("ranks agree").to_values::<f32>();
                let part = 2520 / n;
                assert!(bits(&scattered) == bits(&whole[rank * part..(rank + 1) * part]));
            });
        }
    }
}

#[test]
fn sixteen_bits_are_added_in_f32_and_rounded_once() {
    // 1 + 4 x 2^-9 is 1 + 2^-7, a bf16; each 2^-9 alone is lost beside 1 in bf16.
    for kind in Kind::all() {
        for algorithm in super::ALGORITHMS {
            let sums = run_communicators(kind, 5, options(algorithm), |c| {
                let own = match c.members().index() {
                    0 => 1.0,
                    _ => f32::powi(2.0, -9),
                };
                let own = HostBuffer::from_values(vec![bf16::from_f32(own); 7]);
                let sum = run(&*c, Operation::AllReduce(ReduceOp::Sum), own);
                sum.expect("ranks agree").to_values::<bf16>()
            });
            let expected = vec![bf16::from_f32(1.0 + f32::powi(2.0, -7)); 7];
            let right = sums.iter().all(|sum| *sum == expected);
            assert!(right, "{kind:?} {algorithm:?}: {sums:?}");
        }
    }
}
