//! Send and recv: they concern their two partners only, and cannot block each other.

use std::sync::Arc;

use burn::tensor::DType;
use burn_dist::communicator::{Algorithm, Communicator, HostBuffer, Operation, ReduceOp};
use burn_dist::{DistError, Result};
use tests::{Kind, run_communicators};

use super::value::{Value, for_every_type, input};
use super::{options, run, start};

fn send_recv(to: Option<usize>, from: Option<usize>, receive: &[usize]) -> Operation {
    Operation::SendRecv {
        to,
        from,
        receive: receive.to_vec(),
    }
}

fn send(c: &dyn Communicator, to: usize, values: Vec<f32>) -> Result<HostBuffer> {
    let operation = send_recv(Some(to), None, &[]);
    run(c, operation, HostBuffer::from_values(values))
}

fn recv(c: &dyn Communicator, from: usize, len: usize) -> Result<Vec<f32>> {
    let operation = send_recv(None, Some(from), &[len]);
    let received = run(c, operation, HostBuffer::zeros(DType::F32, vec![0]))?;
    assert_eq!(received.shape(), [len]);
    Ok(received.to_values())
}

/// Runs `f` on `n` ranks of every kind.
fn on<T: Send>(n: usize, f: impl Fn(Kind, Arc<dyn Communicator>) -> T + Send + Sync) {
    for kind in Kind::all() {
        println!("{kind:?}, {n} ranks");
        run_communicators(kind, n, options(Algorithm::Direct), |c| f(kind, c));
    }
}

/// Everyone sends to the next, arrays of different shapes.
fn check_ring<T: Value>(c: &dyn Communicator) {
    let (n, rank) = (c.members().size(), c.members().index());
    let (next, before) = ((rank + 1) % n, (rank + n - 1) % n);
    // Rank 0 sends an empty array.
    let shape = |rank: usize| [rank, 3];
    let own = T::buffer(input::<T>(rank, 3 * rank)).reshaped(shape(rank).to_vec());
    let operation = send_recv(Some(next), Some(before), &shape(before));
    let received = run(c, operation, own).expect("shapes fit");
    assert_eq!(received.shape(), shape(before));
    assert_eq!(T::values(&received), input::<T>(before, 3 * before));
}

#[test]
fn a_ring_of_send_recv_cannot_block() {
    for n in 1..=5 {
        on(n, |_, c| {
            for_every_type!(check_ring(&*c));
        });
    }
}

#[test]
fn large_arrays_cross_each_other() {
    let len = 1_000_003;
    on(2, |_, c| {
        let (rank, other) = (c.members().index(), 1 - c.members().index());
        let own = HostBuffer::from_values(input::<f32>(rank, len));
        let operation = send_recv(Some(other), Some(other), &[len]);
        let received = run(&*c, operation, own).expect("shapes fit");
        assert!(received.to_values::<f32>() == input::<f32>(other, len));
    });
}

#[test]
fn partners_do_not_need_the_others() {
    on(3, |_, c| {
        let rank = c.members().index();
        let barrier = || {
            let empty = HostBuffer::zeros(DType::F32, vec![0]);
            run(&*c, Operation::Barrier, empty).expect("all come");
        };
        // The pairs meet 0, 5 and 1 times: each counts its own calls, the group counts barriers.
        for round in 0..5 {
            match rank {
                0 => {
                    send(&*c, 1, vec![round as f32; 3]).expect("rank 1 receives");
                }
                1 => {
                    let received = recv(&*c, 0, 3).expect("rank 0 sends");
                    assert_eq!(received, [round as f32; 3]);
                }
                _ => {}
            }
        }
        barrier();
        match rank {
            1 => {
                send(&*c, 2, vec![7.0]).expect("rank 2 receives");
            }
            2 => assert_eq!(recv(&*c, 1, 1).expect("rank 1 sends"), [7.0]),
            _ => {}
        }
        barrier();
        // A send has no output and moves its bytes once.
        assert_eq!(c.traffic().total_sent(), [5 * 12, 4, 0][rank]);
        assert_eq!(c.traffic().total_received(), [0, 5 * 12, 4][rank]);
    });
}

#[test]
fn started_sends_pass_along_a_chain_in_order() {
    on(4, |_, c| {
        let (n, rank) = (c.members().size(), c.members().index());
        let mut sends = Vec::new();
        for batch in 0..8 {
            let values = match rank {
                0 => vec![batch as f32; 5],
                _ => recv(&*c, rank - 1, 5).expect("the rank before sends"),
            };
            assert_eq!(values, [(10 * rank + batch) as f32; 5]);
            if rank + 1 < n {
                let next = values.iter().map(|value| value + 10.0).collect::<Vec<_>>();
                let operation = send_recv(Some(rank + 1), None, &[]);
                sends.push(start(&*c, operation, HostBuffer::from_values(next)));
            }
        }
        for work in sends {
            assert_eq!(work.wait().expect("the next rank receives").shape(), [0]);
        }
    });
}

/// Both ranks of a pair make a call that does not fit the other's; both must say so.
fn check_misfit(
    words: &[&str],
    call: impl Fn(&dyn Communicator, usize) -> Result<HostBuffer> + Send + Sync,
) {
    on(2, |kind, c| {
        let rank = c.members().index();
        let error = call(&*c, rank).expect_err("the calls do not fit");
        let text = error.to_string();
        match error {
            DistError::Mismatch { differing, .. } => assert_eq!(differing, 1 - rank, "{text}"),
            other => panic!("{kind:?}: {other}"),
        }
        for word in words {
            assert!(text.contains(word), "{kind:?}, {word} is not in: {text}");
        }
        let refused = send(&*c, 1 - rank, vec![1.0]);
        assert!(matches!(refused, Err(DistError::Poisoned { .. })));
    });
}

#[test]
fn a_receiver_of_another_shape_is_an_error_on_both_sides() {
    check_misfit(&["call 0", "[3]", "[4]"], |c, rank| match rank {
        0 => send(c, 1, vec![1.0; 3]),
        _ => recv(c, 0, 4).map(HostBuffer::from_values),
    });
    // One direction fits, the other does not.
    check_misfit(&["call 0", "[2, 3]", "[3, 2]"], |c, rank| {
        let (own, wanted) = ([[4, 1], [2, 3]][rank], [[3, 2], [4, 1]][rank]);
        let own = HostBuffer::zeros(DType::F32, own.to_vec());
        run(c, send_recv(Some(1 - rank), Some(1 - rank), &wanted), own)
    });
}

#[test]
fn a_receiver_of_another_type_is_an_error_on_both_sides() {
    check_misfit(&["f32", "bf16"], |c, rank| match rank {
        0 => send(c, 1, vec![1.0; 3]),
        _ => {
            let given = HostBuffer::zeros(DType::BF16, vec![0]);
            run(c, send_recv(None, Some(0), &[3]), given)
        }
    });
}

#[test]
fn two_sends_or_two_receives_that_face_each_other_are_errors() {
    check_misfit(&["to index 0", "to index 1"], |c, rank| {
        send(c, 1 - rank, vec![1.0])
    });
    check_misfit(&["from index 0", "from index 1"], |c, rank| {
        recv(c, 1 - rank, 1).map(HostBuffer::from_values)
    });
}

#[test]
fn a_send_that_meets_a_collective_is_an_error_on_both_sides() {
    check_misfit(&["all_reduce", "point to point"], |c, rank| match rank {
        0 => send(c, 1, vec![1.0]),
        _ => {
            let own = HostBuffer::from_values(vec![1.0f32]);
            run(c, Operation::AllReduce(ReduceOp::Sum), own)
        }
    });
}

#[test]
fn a_sender_that_leaves_is_named() {
    on(2, |kind, c| {
        if c.members().index() == 0 {
            send(&*c, 1, vec![1.0]).expect("rank 1 receives");
            return;
        }
        recv(&*c, 0, 1).expect("rank 0 sends");
        match recv(&*c, 0, 1) {
            Err(DistError::PeerLost {
                lost, operation, ..
            }) => assert_eq!((lost, &*operation), (vec![0], "recv")),
            other => panic!("{kind:?}: {other:?}"),
        }
    });
}
