//! Gradients and parameters that stay in a device's memory: the bits of host memory and of one rank, and nothing of
//! their size goes through the host. `cargo test -p tests --features cpu --test device_memory`.
#![cfg(feature = "cpu")]

#[path = "device_memory/models.rs"]
mod models;
#[path = "device_memory/runs.rs"]
mod runs;
#[path = "device_memory/sharded.rs"]
mod sharded;

use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::Tensor;
use burn_dist::collectives::{start_all_gather, start_all_reduce, start_reduce_scatter};
use burn_dist::communicator::{Operation, ReduceOp};
use burn_dist::data_parallel::{
    BucketSizes, DataParallel, DataParallelConfig, RankOrderAccumulator,
};
use burn_dist::{DistError, ProcessGroup, Result};
use models::{Chain, Partly, Recurrent, Sometimes, Toy, fill};
use runs::{LR, STEPS, bits, check_calls, device, start};
use tests::{run_group, run_reaching};

/// One rank in the grouping of `n` ranks with `micro` micro-steps each.
fn reference<M: Toy>(start: &M, n: usize, micro: usize) -> Vec<Vec<u8>> {
    let mut model = start.valid().train();
    let mut optimizer = AdamWConfig::new().init();
    for step in 0..STEPS {
        let mut sum = RankOrderAccumulator::new();
        for rank in 0..n {
            for m in 0..micro {
                let loss = model.loss((step * n + rank) * micro + m, &device());
                sum.add(&model, GradientsParams::from_grads(loss.backward(), &model));
            }
            sum.end_rank(&model);
        }
        let gradients = sum.mean(&model);
        model = optimizer.step(LR, model, gradients);
    }
    bits(&model)
}

fn train<M: Toy>(
    start: M,
    group: &ProcessGroup,
    micro: usize,
    bytes: usize,
    wrapped: impl FnOnce(),
) -> Result<(M, DataParallel)> {
    let (n, rank) = (group.size(), group.index());
    let config = DataParallelConfig {
        bucket_sizes: BucketSizes {
            first: bytes,
            rest: bytes,
        },
        average_micro_steps: true,
        ..DataParallelConfig::default()
    };
    let (parallel, mut model) = DataParallel::wrap_with(start, group, config)?;
    wrapped();
    let mut optimizer = AdamWConfig::new().init();
    for step in 0..STEPS {
        let item = |m| (step * n + rank) * micro + m;
        for m in 0..micro - 1 {
            let loss = model.loss(item(m), &device());
            parallel.no_sync(|| loss.backward());
        }
        let loss = model.loss(item(micro - 1), &device());
        let gradients = parallel.sync(loss.backward(), &model)?;
        model = optimizer.step(LR, model, gradients);
    }
    Ok((model, parallel))
}

fn check<M: Toy + 'static>() {
    let start = start::<M>();
    for (n, micro) in [(2, 2), (4, 1)] {
        let expected = reference(&start.get(), n, micro);
        assert!(bits(&start.get()) != expected, "nothing was learnt");
        for bytes in [0, 200, 1_000_000] {
            let what = format!("{n} ranks, {micro} micro-steps, buckets of {bytes} bytes");
            let staged = run_group(n, |group| {
                let (model, _) = train(start.get(), &group, micro, bytes, || ())?;
                Ok(bits(&model))
            });
            for found in staged {
                assert!(
                    found.expect("no fault") == expected,
                    "{what}, through the host"
                );
            }
            let reached = run_reaching(n, &device(), |group, log| {
                let start = start.get();
                let (model, parallel) = train(start, &group, micro, bytes, || log.clear())?;
                let plan = parallel.plan();
                let parameters = parallel.parameters().specs().len();
                Ok((
                    bits(&model),
                    (plan.buckets().len(), plan.num_bytes()),
                    parameters,
                ))
            });
            for found in reached {
                let ((found, (buckets, bytes), parameters), calls) = found.expect("no fault");
                assert!(found == expected, "{what}");
                let on_device = check_calls(&calls, parameters);
                assert_eq!(on_device.len(), STEPS * buckets, "{what}");
                let all_reduces = on_device
                    .iter()
                    .all(|call| matches!(call.operation, Operation::AllReduce(_)));
                assert!(all_reduces, "{what}");
                let moved: usize = on_device.iter().map(|call| call.bytes).sum();
                assert_eq!(moved, STEPS * bytes, "{what}");
            }
        }
    }
}

#[test]
fn data_parallel_on_a_recurrence() {
    check::<Recurrent>();
}

#[test]
fn data_parallel_on_cells_used_twice_and_never() {
    check::<Partly>();
}

#[test]
fn data_parallel_on_a_cell_that_some_ranks_use() {
    check::<Sometimes>();
}

#[test]
fn data_parallel_on_a_chain() {
    check::<Chain>();
}

#[test]
fn started_collectives_stay_on_the_device() {
    let results = run_reaching(3, &device(), |group, _| {
        let rank = group.index();
        let input = || fill([6, 5], rank, &device().inner());
        let sum = start_all_reduce(input(), ReduceOp::Sum, &group).wait()?;
        let part = start_reduce_scatter(input(), ReduceOp::Sum, &group).wait()?;
        let parts = start_all_gather(part.clone(), &group).wait()?;
        Ok((sum.into_data(), part.into_data(), parts.into_data()))
    });
    for (rank, result) in results.into_iter().enumerate() {
        let ((sum, part, parts), calls) = result.expect("no fault");
        assert_eq!(calls.len(), 3);
        assert!(calls.iter().all(|call| call.on_device));
        assert_eq!(sum, parts);
        let own: Tensor<2> = Tensor::from_data(sum, &device().inner());
        let own = own.slice([2 * rank..2 * rank + 2, 0..5]);
        assert_eq!(own.into_data(), part);
    }
}

#[test]
fn ranks_that_differ_get_the_error_of_host_memory() {
    let results = run_reaching(2, &device(), |group, _| {
        let shape = [2 + group.index(), 5];
        let input = fill(shape, 0, &device().inner());
        let ended = start_all_reduce(input, ReduceOp::Sum, &group).wait();
        Ok(ended.map(drop))
    });
    for result in results {
        let (ended, _) = result.expect("the log is there");
        let failure = ended.expect_err("shapes differ");
        assert!(matches!(failure, DistError::Mismatch { .. }), "{failure}");
        assert!(failure.to_string().contains("device memory"), "{failure}");
    }
}

#[test]
fn a_rank_without_input_takes_part() {
    let device = device();
    let start = start::<Chain>();
    let run = |group: &ProcessGroup| {
        let (parallel, model) = DataParallel::wrap(start.get(), group)?;
        let gradients = match group.index() {
            0 => parallel.sync(model.loss(0, &device).backward(), &model)?,
            _ => parallel.sync_without_input(&model)?,
        };
        let mut optimizer = AdamWConfig::new().init();
        Ok(bits(&optimizer.step(LR, model, gradients)))
    };
    let staged = run_group(2, |group| run(&group));
    let reached = run_reaching(2, &device, |group, _| run(&group));
    for (staged, reached) in staged.into_iter().zip(reached) {
        assert!(staged.expect("no fault") == reached.expect("no fault").0);
    }
}

#[test]
fn a_failure_during_the_backward_pass_comes_out_of_sync() {
    let start = start::<Chain>();
    let results = run_reaching(2, &device(), |group, _| {
        let (parallel, model) = DataParallel::wrap(start.get(), &group)?;
        if group.index() == 1 {
            group.abort(DistError::config("rank 1 has had enough", "none"));
            return Ok(true);
        }
        let loss = model.loss(0, &device());
        Ok(parallel.sync(loss.backward(), &model).is_err())
    });
    for result in results {
        assert!(result.expect("no panic").0);
    }
}
