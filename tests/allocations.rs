//! What a call allocates once a program repeats itself.
#![warn(missing_docs)]

use burn::tensor::DType;
use burn_dist::communicator::{
    Algorithm, Call, Communicator, CommunicatorOptions, HostBuffer, Operation, ReduceOp,
};
use tests::{Kind, run_communicators};

/// Elements of arrays that are sent in one piece, in blocks, and read by neighbours.
const LENGTHS: [usize; 4] = [16, 24 << 10, 256 << 10, 1 << 20];

const CALLS: u64 = 20;

/// Allocations of some calls with inputs from the pool, not counting those of the inputs.
fn allocations(c: &dyn Communicator, operation: &Operation, shape: &[usize]) -> u64 {
    let call = || {
        let input = HostBuffer::recycled(c.pool(), DType::F32, shape);
        let call = Call::new(operation.clone(), input);
        let counted = allocation_counter::measure(|| {
            drop(c.run(call).expect("ranks agree"));
        });
        counted.count_total
    };
    // Buffers grow to their size, and so does the pool.
    (0..5).for_each(|_| {
        call();
    });
    (0..CALLS).map(|_| call()).sum()
}

#[test]
fn a_repeated_call_allocates_nothing_but_the_owner_of_a_new_output() {
    let options = CommunicatorOptions {
        algorithm: Algorithm::Direct,
        ..CommunicatorOptions::default()
    };
    for kind in Kind::all().into_iter().filter(|k| *k != Kind::Recorded) {
        for n in [2, 4] {
            run_communicators(kind, n, options, |c| {
                for len in LENGTHS {
                    let all_to_all = Operation::AllToAll {
                        send_counts: vec![len / n; n],
                        recv_counts: vec![len / n; n],
                    };
                    let around = Operation::SendRecv {
                        to: Some((c.members().index() + 1) % n),
                        from: Some((c.members().index() + n - 1) % n),
                        receive: vec![len],
                    };
                    // Burn's `Bytes` own their memory through a box: one for each new array.
                    let cases = [
                        (Operation::AllReduce(ReduceOp::Sum), 0),
                        (Operation::Broadcast { root: 0 }, 0),
                        (Operation::ReduceScatter(ReduceOp::Sum), CALLS),
                        (Operation::AllGather, CALLS),
                        (all_to_all, CALLS),
                        (around, CALLS),
                    ];
                    for (operation, expected) in cases {
                        let found = allocations(&*c, &operation, &[len]);
                        let name = operation.name();
                        assert!(
                            found <= expected,
                            "{kind:?}, {n} ranks, {name} of {len}: {found} allocations in {CALLS} calls"
                        );
                    }
                }
            });
        }
    }
}

#[test]
fn the_memory_of_a_communicator_is_bounded_by_its_largest_calls() {
    run_communicators(Kind::SharedMemory, 2, CommunicatorOptions::default(), |c| {
        let mut largest = 0;
        for round in 0..30 {
            for len in LENGTHS {
                let input = HostBuffer::recycled(c.pool(), DType::F32, &[len + round]);
                let output = c.run(Call::new(Operation::AllGather, input));
                largest = largest.max(4 * 3 * (len + round));
                drop(output.expect("ranks agree"));
            }
        }
        // Inputs and outputs of one call at a time, each in memory of up to 5/4 of its size.
        let held = c.pool().held_bytes();
        assert!(
            held <= largest * 5 / 4 + 64,
            "{held} bytes, {largest} in use at most"
        );
    });
}
