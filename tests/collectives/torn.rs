//! Groups that are given up while others read this rank's memory: what comes out as good is good.

use std::time::Duration;

use burn::tensor::DType;
use burn_dist::DistError;
use burn_dist::communicator::{
    Algorithm, Call, CommunicatorOptions, HostBuffer, Operation, ReduceOp,
};
use tests::{Kind, run_communicators};

use super::options;

/// Elements: long enough to be read from neighbours' memory.
const LEN: usize = 1 << 20;

/// What a reused array holds.
const REUSED: f32 = -777.0;

fn check(operation: &Operation, microseconds: u64) {
    let options = CommunicatorOptions {
        timeout: Duration::from_secs(10),
        ..options(Algorithm::Direct)
    };
    run_communicators(Kind::SharedMemory, 3, options, |c| {
        let (n, rank) = (c.members().size(), c.members().index());
        let len = LEN.next_multiple_of(n);
        let array = |value: f32| {
            let mut array = HostBuffer::recycled(c.pool(), DType::F32, &[len]);
            let values: &mut [f32] = bytemuck::cast_slice_mut(array.bytes_mut());
            values.fill(value);
            array
        };
        // The same program until one gives up, in another thread, amid a call.
        let quitter = (rank == 0).then(|| {
            let c = c.clone();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_micros(microseconds));
                c.abort(DistError::config("enough", "nothing"));
            })
        });
        for _ in 0..100 {
            let call = Call::new(operation.clone(), array(rank as f32 + 1.0));
            let Ok(output) = c.run(call) else {
                // The memory of the call that failed is somebody else's at once.
                drop(array(REUSED));
                break;
            };
            let values: &[f32] = bytemuck::cast_slice(output.bytes());
            let part = values.len() / n;
            for (i, &value) in values.iter().enumerate() {
                let expected = match operation {
                    Operation::AllGather => (i / part + 1) as f32,
                    _ => (n * (n + 1) / 2) as f32,
                };
                assert!(value == expected, "{operation:?}: {value} at {i}");
            }
        }
        if let Some(quitter) = quitter {
            quitter.join().expect("no panic");
        }
    });
}

#[test]
fn arrays_that_went_while_they_were_read_are_never_taken_for_good() {
    let operations = [
        Operation::AllGather,
        Operation::AllReduce(ReduceOp::Sum),
        Operation::ReduceScatter(ReduceOp::Sum),
    ];
    for operation in &operations {
        for microseconds in (1000..20_000).step_by(1777) {
            check(operation, microseconds);
        }
    }
}
