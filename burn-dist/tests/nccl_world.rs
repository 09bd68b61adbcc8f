//! NCCL in a world of one rank, on a machine with a GPU:
//! `cargo test -p burn-dist --features cuda --test nccl_world -- --ignored --nocapture`.
#![cfg(feature = "cuda")]

use std::time::{Duration, Instant};

use burn::tensor::{DType, Device, Distribution, Tensor};
use burn_dist::collectives::{all_gather, all_reduce, all_to_all, broadcast, reduce_scatter};
use burn_dist::communicator::ReduceOp;
use burn_dist::{ProcessGroup, Result, WorldOptions, launch_threads};

type Collective = fn(Tensor<2>, &ProcessGroup) -> Result<Tensor<2>>;

const COLLECTIVES: [(&str, Collective); 7] = [
    ("all_reduce, sum", |x, group| {
        all_reduce(x, ReduceOp::Sum, group)
    }),
    ("all_reduce, mean", |x, group| {
        all_reduce(x, ReduceOp::Mean, group)
    }),
    ("all_reduce, largest", |x, group| {
        all_reduce(x, ReduceOp::Max, group)
    }),
    ("reduce_scatter", |x, group| {
        reduce_scatter(x, ReduceOp::Sum, 0, group)
    }),
    ("all_gather", |x, group| all_gather(x, 1, group)),
    ("all_to_all", |x, group| all_to_all(x, 0, 1, group)),
    ("broadcast", |x, group| broadcast(x, 0, group)),
];

fn options() -> WorldOptions {
    WorldOptions {
        nccl: Some(0),
        step_timeout: Duration::from_secs(60),
        ..WorldOptions::default()
    }
}

#[test]
#[ignore = "needs a CUDA device and NCCL"]
fn collectives_of_one_rank_leave_device_memory_as_it_is() {
    let ran = launch_threads(1, options(), |world| {
        let group = world.whole()?;
        let on = group.communicator().device();
        assert_eq!(
            on.map(|device| device.array_device()),
            Some(Device::cuda(0))
        );
        let device = Device::cuda(0);
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for shape in [[1, 1], [7, 33], [256, 4096], [0, 8]] {
                let filled = Tensor::<2>::random(shape, Distribution::Normal(0.0, 1.0), &device);
                let filled = filled.cast(dtype);
                let before = filled.to_data();
                for (name, collective) in COLLECTIVES {
                    let after = collective(filled.clone(), &group)?.into_data();
                    assert_eq!(after.shape(), before.shape(), "{name}, {dtype:?}");
                    assert_eq!(
                        after.as_bytes(),
                        before.as_bytes(),
                        "{name}, {dtype:?}, {shape:?}"
                    );
                }
            }
        }
        Ok(())
    });
    ran.expect("no fault");
}

/// Prints what a call costs; a sum that waited for the host's copies would take milliseconds.
#[test]
#[ignore = "needs a CUDA device and NCCL"]
fn calls_do_not_go_through_host_memory() {
    let times = launch_threads(1, options(), |world| {
        let group = world.whole()?;
        let device = Device::cuda(0);
        let elements = 64 << 20;
        let x = Tensor::<1>::ones([elements], &device);
        let mut times = Vec::new();
        for _ in 0..12 {
            device.sync().expect("the device goes on");
            let start = Instant::now();
            let sum = all_reduce(x.clone(), ReduceOp::Sum, &group)?;
            device.sync().expect("the device goes on");
            times.push(start.elapsed());
            drop(sum);
        }
        let start = Instant::now();
        let read = x.into_data();
        let copied = start.elapsed();
        assert_eq!(read.as_bytes().len(), 4 * elements);
        times.sort();
        Ok((times[times.len() / 2], copied))
    });
    let (median, copied) = times.expect("no fault")[0];
    println!(
        "all_reduce of 256 MiB in a world of one: {median:?}; a copy of it to the host: {copied:?}"
    );
    assert!(median < copied, "{median:?} of {copied:?}");
}
