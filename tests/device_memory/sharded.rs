//! ZeRO: what is sharded stays in device memory.

use std::sync::Arc;

use burn::optim::{AdamWConfig, LambConfig};
use burn_dist::communicator::{
    Communicator, CommunicatorOptions, InProcessHub, Members, Operation, RecordedCall,
    RecordingCommunicator,
};
use burn_dist::data_parallel::BucketSizes;
use burn_dist::{ProcessGroup, Result};
use burn_zero::{
    FullyShard, MixedPrecisionPolicy, ShardableOptimizer, ShardedOptimizer, ShardedOptimizerConfig,
    UnitPolicy,
};
use tests::{MemoryDevice, run_group, run_reaching, run_threads};

use crate::models::{Chain, Narrow, Partly, Recurrent, Sometimes, Toy};
use crate::runs::{LR, STEPS, Start, bits, check_calls, device, start};

type Bits = Vec<Vec<u8>>;

/// The same run with and without the device in reach; what it called where it had it.
fn both(
    n: usize,
    what: &str,
    run: impl Fn(&ProcessGroup, &dyn Fn()) -> Result<Bits> + Send + Sync,
) -> Vec<Vec<RecordedCall>> {
    let staged = run_group(n, |group| run(&group, &|| ()));
    let reached = run_reaching(n, &device(), |group, log| run(&group, &|| log.clear()));
    let pairs = staged.into_iter().zip(reached);
    pairs
        .map(|(staged, reached)| {
            let (reached, calls) = reached.expect("no fault");
            assert!(staged.expect("no fault") == reached, "{n} ranks, {what}");
            calls
        })
        .collect()
}

fn adamw() -> ShardableOptimizer {
    AdamWConfig::new().with_weight_decay(0.1).build().into()
}

fn units(bytes: usize) -> ShardedOptimizerConfig {
    ShardedOptimizerConfig {
        bucket_sizes: BucketSizes {
            first: bytes,
            rest: bytes,
        },
        average_micro_steps: true,
        ..ShardedOptimizerConfig::default()
    }
}

fn step_shards<M: Toy>(
    start: &Start<M>,
    (optimizer, config): (ShardableOptimizer, ShardedOptimizerConfig),
    accumulates: bool,
    group: &ProcessGroup,
    wrapped: &dyn Fn(),
) -> Result<Bits> {
    let (n, rank) = (group.size(), group.index());
    let (mut sharded, mut model) =
        ShardedOptimizer::wrap_with(start.get(), optimizer, group, config)?;
    wrapped();
    for step in 0..STEPS {
        if accumulates {
            let loss = model.loss(1000 + step * n + rank, &device());
            sharded.accumulate(sharded.scale(loss).backward())?;
        }
        let loss = model.loss(step * n + rank, &device());
        model = sharded.step(LR, model, sharded.scale(loss).backward())?;
    }
    Ok(bits(&model))
}

fn check_pieces<M: Toy + 'static>(config: impl Fn() -> ShardedOptimizerConfig + Send + Sync) {
    let start = start::<M>();
    let (parameters, _) = start.num_parameters();
    for (n, accumulates) in [(2, false), (2, true), (4, false)] {
        let what = format!("accumulating: {accumulates}");
        let calls = both(n, &what, |group, wrapped| {
            step_shards(&start, (adamw(), config()), accumulates, group, wrapped)
        });
        for calls in calls {
            let on_device = check_calls(&calls, parameters);
            let number = |wanted: fn(&Operation) -> bool| {
                on_device
                    .iter()
                    .filter(|call| wanted(&call.operation))
                    .count()
            };
            let scatters = number(|operation| matches!(operation, Operation::ReduceScatter(_)));
            let gathers = number(|operation| matches!(operation, Operation::AllGather));
            assert_eq!(scatters + gathers, on_device.len());
            assert_eq!(scatters, gathers * (1 + usize::from(accumulates)));
            assert!(gathers >= STEPS);
        }
    }
}

#[test]
fn parts_of_a_chain() {
    check_pieces::<Chain>(|| units(200));
    check_pieces::<Chain>(|| units(1_000_000));
}

#[test]
fn parts_of_a_recurrence() {
    check_pieces::<Recurrent>(|| units(200));
}

#[test]
fn parts_of_cells_used_twice_and_never_with_one_norm() {
    let config = || ShardedOptimizerConfig {
        max_grad_norm: Some(0.01),
        ..units(200)
    };
    check_pieces::<Partly>(config);
    check_pieces::<Sometimes>(config);
}

#[test]
fn parts_with_masters_of_more_bits() {
    for policy in [MixedPrecisionPolicy::bf16(), MixedPrecisionPolicy::f16()] {
        check_pieces::<Narrow>(|| ShardedOptimizerConfig {
            mixed_precision: policy,
            ..units(200)
        });
    }
}

#[test]
fn whole_parameters_of_an_optimizer_that_looks_at_them() {
    let start = start::<Partly>();
    let calls = both(3, "whole parameters", |group, wrapped| {
        let config = (LambConfig::new().init().into(), units(200));
        step_shards(&start, config, false, group, wrapped)
    });
    for calls in calls {
        let (parameters, trained) = start.num_parameters();
        let on_device = check_calls(&calls, parameters);
        let broadcasts = on_device
            .iter()
            .filter(|call| matches!(call.operation, Operation::Broadcast { .. }));
        assert_eq!(broadcasts.count(), STEPS * trained);
    }
}

fn step_units<M: Toy>(
    start: &Start<M>,
    settings: FullyShard,
    (n, rank): (usize, usize),
    wrapped: &dyn Fn(),
) -> Result<Bits> {
    let (sharded, mut model) = settings.wrap(start.get())?;
    wrapped();
    let mut optimizer = AdamWConfig::new().init();
    for step in 0..STEPS {
        if step == 1 {
            let loss = model.loss(1000 + rank, &device());
            sharded.no_sync(|| loss.backward());
        }
        let loss = model.loss(step * n + rank, &device());
        let gradients = sharded.gradients(loss.backward(), &model)?;
        let (gradients, _) = sharded.clip_grad_norm(gradients, &model, 0.1)?;
        model = optimizer.step(LR, model, gradients);
    }
    Ok(bits(&sharded.materialize(model)?))
}

fn check_units<M: Toy + 'static>() {
    let start = start::<M>();
    let settings: [fn(&ProcessGroup) -> FullyShard; 4] = [
        |group| FullyShard::new(group).least_unit_bytes(0),
        |group| {
            FullyShard::new(group)
                .units(UnitPolicy::BySize(200))
                .prefetch(false)
        },
        |group| {
            FullyShard::new(group)
                .units(UnitPolicy::Whole)
                .reshard_after_forward(false)
        },
        |group| FullyShard::new(group).least_unit_bytes(0).whole_below(10),
    ];
    for (number, settings) in settings.into_iter().enumerate() {
        for n in [2, 4] {
            let what = format!("settings {number}");
            let calls = both(n, &what, |group, wrapped| {
                let place = (group.size(), group.index());
                step_units(&start, settings(group), place, wrapped)
            });
            for calls in calls {
                let on_device = check_calls(&calls, start.num_parameters().0);
                assert!(on_device.len() >= 2 * STEPS);
            }
        }
    }
}

#[test]
fn units_of_a_chain() {
    check_units::<Chain>();
}

#[test]
fn units_of_a_recurrence() {
    check_units::<Recurrent>();
}

#[test]
fn units_of_cells_used_twice_and_never() {
    check_units::<Partly>();
}

#[test]
fn units_in_bf16_with_masters() {
    let start = start::<Narrow>();
    for calls in both(2, "bf16", |group, wrapped| {
        let settings = FullyShard::new(group).mixed_precision(MixedPrecisionPolicy::bf16());
        step_units(&start, settings, (group.size(), group.index()), wrapped)
    }) {
        check_calls(&calls, 4);
    }
}

/// Groups of two shards, and of the two replicas of each, with the device in reach or not.
fn hybrid_groups(hub: &InProcessHub, rank: usize, reaches: bool) -> [ProcessGroup; 2] {
    let (replica, shard) = (rank / 2, rank % 2);
    let group = |name: String, ranks: [usize; 2]| {
        let members = Members::new(name, &ranks, rank).expect("a valid group");
        let host = hub.connect(&members, CommunicatorOptions::default(), None);
        let host: Arc<dyn Communicator> = Arc::new(host);
        ProcessGroup::new(match reaches {
            true => Arc::new(MemoryDevice::new(host, &device())),
            false => host,
        })
    };
    [
        group(format!("shards {replica}"), [2 * replica, 2 * replica + 1]),
        group(format!("replicas {shard}"), [shard, 2 + shard]),
    ]
}

#[test]
fn units_in_replicas() {
    let start = start::<Chain>();
    let run = |reaches: bool| {
        let hub = InProcessHub::new();
        run_threads(4, |rank| {
            let [shards, replicas] = hybrid_groups(&hub, rank, reaches).map(|group| {
                let log = Arc::new(RecordingCommunicator::new(group.communicator().clone()));
                (ProcessGroup::new(log.clone()), log)
            });
            let settings = FullyShard::new(&shards.0).replicate(&replicas.0);
            let clear = || {
                [&shards, &replicas]
                    .into_iter()
                    .for_each(|(_, log)| log.clear())
            };
            let found = step_units(&start, settings, (4, rank), &clear).expect("no fault");
            let calls = [shards.1.calls(), replicas.1.calls()].concat();
            (found, calls)
        })
    };
    for ((staged, _), (reached, calls)) in run(false).into_iter().zip(run(true)) {
        assert!(staged == reached);
        assert!(!check_calls(&calls, start.num_parameters().0).is_empty());
    }
}
