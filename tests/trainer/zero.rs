//! ZeRO in Burn's own trainer: the numbers of data parallelism, and checkpoints of one device.

use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, ModuleOptimizer, SgdConfig};
use burn::tensor::DType;
use burn_dist::ProcessGroup;
use burn_dist::train::{Distributed, LastRound};
use burn_zero::{LossScale, MixedPrecisionPolicy, ShardedOptimizerConfig, Zero};
use tests::run_threads;

use crate::job::{Job, Net, Outcome, train, train_with};
use crate::{assert_same, on_ranks, sum, worst_difference};

fn adamw() -> burn::optim::AdamW {
    AdamWConfig::new().build()
}

/// Whole parameters, pieces, and everything split.
fn stages() -> Vec<(&'static str, Zero)> {
    vec![
        (
            "stage 1, whole",
            Zero::stage1(ModuleOptimizer::from(adamw())),
        ),
        ("stage 1", Zero::stage1(adamw())),
        ("stage 2", Zero::stage2(adamw())),
        ("stage 3", Zero::stage3(adamw())),
        ("stage 3, fused", Zero::stage3(AdamWConfig::new())),
        ("stage 3, no_sync", Zero::stage3(adamw()).no_sync()),
    ]
}

/// A sum of means is not rounded as a mean of sums.
fn reduces_each(name: &str) -> bool {
    ["stage 2", "stage 3", "stage 3, fused"].contains(&name)
}

fn sharded(ranks: usize, zero: &Zero) -> Distributed<Net> {
    sum(ranks).parallelism(zero.clone())
}

#[test]
fn all_stages_are_one_device_that_accumulates_bit_for_bit() {
    for (items, batch) in [(48, 4), (22, 4), (7, 2)] {
        let mut job = Job::new(items, 22, batch);
        for ranks in [1, 2, 3, 4] {
            job.accumulation = Some(ranks);
            let one = train(&job, None);
            job.accumulation = None;
            for (name, zero) in stages() {
                let many = on_ranks(&job, || sharded(ranks, &zero));
                assert_same(
                    &one,
                    &many,
                    &format!("{items} items on {ranks} ranks, {name}"),
                );
            }
        }
    }
}

/// Means are of three, some of ranks that have no batch; micro-steps stop in the middle of a step.
#[test]
fn all_stages_are_data_parallelism_in_uneven_rounds_and_micro_steps() {
    for (items, batch, ranks) in [(22, 4, 3), (26, 2, 4), (2, 1, 3)] {
        let mut job = Job::new(items, 10, batch);
        for accumulation in [None, Some(2), Some(3)] {
            job.accumulation = accumulation;
            let clipped = |strategy: Distributed<Net>| strategy.clip_grad_norm(0.05);
            let replicas = on_ranks(&job, || clipped(Distributed::new(ranks)));
            for (name, zero) in stages() {
                let what = format!("{items} items, {ranks} ranks, {accumulation:?}, {name}");
                let many = on_ranks(&job, || {
                    clipped(Distributed::new(ranks)).parallelism(zero.clone())
                });
                if accumulation.is_none() || !reduces_each(name) {
                    assert_same(&replicas, &many, &what);
                }
                assert_eq!(many.error, None, "{what}");
                let worst = worst_difference(&replicas, &many);
                assert!(worst < 1e-5, "{what}: {worst}");
            }
        }
    }
}

#[test]
fn checkpoints_of_all_stages_are_those_of_one_device() {
    let folder = tempfile::tempdir().expect("a folder");
    let job = |name: &str, epochs, resume, accumulation| {
        let job = Job::new(24, 8, 3).accumulating(accumulation);
        job.with_checkpoints(&folder.path().join(name), epochs, resume)
    };
    train(&job("one", 2, None, Some(2)), None);
    let one_to_one = train(&job("one", 3, Some(2), Some(2)), None);
    for (name, zero) in stages() {
        on_ranks(&job(name, 2, None, None), || sharded(2, &zero));
        let to_one = train(&job(name, 3, Some(2), Some(2)), None);
        assert_same(&one_to_one, &to_one, &format!("{name} to one"));
        for (other, zero) in stages() {
            let resumed = on_ranks(&job(name, 3, Some(2), None), || sharded(2, &zero));
            assert_same(&one_to_one, &resumed, &format!("{name} to {other}"));
        }
        // What a resumed run has saved resumes too.
        let twice = on_ranks(&job(name, 4, Some(3), None), || sharded(2, &zero));
        let one = train(&job("one", 4, Some(3), Some(2)), None);
        assert_same(&one, &twice, &format!("{name}, twice"));
    }
    // Over another number of ranks.
    for (name, zero) in stages() {
        let four = || on_ranks(&job("one", 3, Some(2), None), || sharded(4, &zero));
        let replicas = on_ranks(&job("one", 3, Some(2), None), || sum(4));
        assert_same(&replicas, &four(), &format!("one to {name} on 4"));
    }
}

#[test]
fn running_statistics_are_those_of_replicas() {
    let mut job = Job::new(30, 12, 3);
    job.batch_norm = true;
    // Five rounds: with two in a step, an epoch ends in the middle of one.
    for (over, accumulation) in [(false, None), (true, None), (false, Some(2))] {
        job.accumulation = accumulation;
        let strategy = || match over {
            true => sum(2).prepare(|net: Net, group| net.over(group)),
            false => sum(2),
        };
        let replicas = on_ranks(&job, strategy);
        // Adam makes much of a gradient that is only rounding, as of a bias before a normalization.
        let mut rounded = None;
        for (name, zero) in stages() {
            let many = on_ranks(&job, || strategy().parallelism(zero.clone()));
            let what = format!("{name}, over ranks: {over}, {accumulation:?}");
            match accumulation.is_some() && reduces_each(name) {
                false => assert_same(&replicas, &many, &what),
                true => assert_same(rounded.get_or_insert_with(|| many.clone()), &many, &what),
            }
        }
    }
}

#[test]
fn masters_of_bf16_are_what_is_saved_and_resumed() {
    let folder = tempfile::tempdir().expect("a folder");
    let job = |name: &str, epochs, resume| {
        let mut job = Job::new(48, 12, 3);
        job.dtype = DType::BF16;
        job.with_checkpoints(&folder.path().join(name), epochs, resume)
    };
    let stages = || {
        let zeros = [
            Zero::stage1(adamw()),
            Zero::stage2(adamw()),
            Zero::stage3(adamw()),
        ];
        zeros.map(|zero| zero.mixed_precision(MixedPrecisionPolicy::bf16()))
    };
    let first = on_ranks(&job("0", 2, None), || sharded(2, &stages()[0]));
    assert_eq!(first.error, None);
    let kept = |v: &f32| v.to_bits() & 0xffff != 0;
    let values = first.values();
    assert!(values.iter().filter(|v| kept(v)).count() > values.len() / 2);
    let resumed = on_ranks(&job("0", 3, Some(2)), || sharded(2, &stages()[0]));
    for (number, zero) in stages().into_iter().enumerate().skip(1) {
        let name = number.to_string();
        let same = on_ranks(&job(&name, 2, None), || sharded(2, &zero));
        assert_same(&first, &same, &format!("stage {}", number + 1));
        let again = on_ranks(&job(&name, 3, Some(2)), || sharded(2, &zero));
        assert_same(&resumed, &again, &format!("stage {} resumed", number + 1));
    }
    let mut whole = Job::new(48, 12, 3);
    (whole.decay, whole.epochs) = (true, 2);
    let f32 = on_ranks(&whole, || sum(2));
    let length = |values: &[f32]| values.iter().map(|v| v * v).sum::<f32>().sqrt();
    let pairs = f32.values().into_iter().zip(&values);
    let off: Vec<f32> = pairs.map(|(a, b)| a - b).collect();
    let off = length(&off) / length(&values);
    assert!(off > 1e-4 && off < 0.05, "{off}");
}

#[test]
fn what_is_not_trained_stays() {
    let mut job = Job::new(24, 12, 3);
    job.frozen = true;
    let replicas = on_ranks(&job, || sum(2));
    for (name, zero) in stages() {
        let many = on_ranks(&job, || sharded(2, &zero));
        assert_same(&replicas, &many, &format!("{name}, frozen"));
    }
}

#[test]
fn last_rounds_and_stops_are_those_of_replicas() {
    let job = Job::new(22, 10, 4);
    for last_round in [LastRound::Drop, LastRound::Repeat] {
        let replicas = on_ranks(&job, || sum(4).last_round(last_round));
        for (name, zero) in stages() {
            let many = on_ranks(&job, || sharded(4, &zero).last_round(last_round));
            assert_same(&replicas, &many, &format!("{name}, {last_round:?}"));
        }
    }
    // In the middle of a step.
    let mut job = Job::new(400, 10, 2).accumulating(Some(4));
    job.stop_after = Some(20);
    for (name, zero) in stages() {
        let many = on_ranks(&job, || sharded(3, &zero));
        assert_eq!(many.error, None, "{name}");
        assert_eq!(many.interrupted.as_deref(), Some("enough items"), "{name}");
    }
}

#[test]
fn momentum_is_resumed() {
    let folder = tempfile::tempdir().expect("a folder");
    let job = |name: &str, epochs, resume, accumulation| {
        let job = Job::new(24, 8, 3).accumulating(accumulation);
        job.with_checkpoints(&folder.path().join(name), epochs, resume)
    };
    let sgd = || SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    train_with(&job("one", 2, None, Some(2)), sgd().init(), None);
    let one = train_with(&job("one", 3, Some(2), Some(2)), sgd().init(), None);
    for zero in [Zero::stage1(sgd()), Zero::stage3(sgd())] {
        let on_ranks = |job: &Job| {
            let strategy = || sharded(2, &zero).into();
            let mut many = run_threads(1, |_| train_with(job, sgd().init(), Some(strategy())));
            many.pop().expect("one")
        };
        on_ranks(&job("ranks", 2, None, None));
        let many = on_ranks(&job("ranks", 3, Some(2), None));
        assert_same(&one, &many, "momentum");
    }
}

#[track_caller]
fn assert_fails(outcome: &Outcome, words: &[&str]) {
    let error = outcome.error.clone().expect("an error");
    for word in words {
        assert!(error.contains(word), "{word:?} in {error}");
    }
}

#[test]
fn an_optimizer_that_is_not_the_learner_s_is_refused() {
    let job = Job::new(12, 6, 3);
    let other = [
        AdamWConfig::new().with_beta_2(0.99).build(),
        AdamWConfig::new().with_amsgrad(true).build(),
        AdamWConfig::new().with_weight_decay(0.01).build(),
        AdamWConfig::new().with_epsilon(1e-2).build(),
    ];
    for optimizer in other {
        for zero in [Zero::stage1(optimizer.clone()), Zero::stage3(optimizer)] {
            let many = on_ranks(&job, || sharded(2, &zero));
            assert_fails(&many, &["not the learner's", "first.weight"]);
        }
    }
    let clips = || {
        let clipping = burn::grad_clipping::GradientClippingConfig::Norm(0.5);
        SgdConfig::new()
            .with_gradient_clipping(Some(clipping))
            .init()
    };
    let free = Zero::stage3(SgdConfig::new());
    let many = run_threads(1, |_| {
        train_with(&job, clips(), Some(sharded(2, &free).into()))
    });
    assert_fails(&many[0], &["not the learner's"]);
    // As a whole it is the same.
    let same = || sharded(2, &Zero::stage1(clips())).into();
    let many = run_threads(1, |_| train_with(&job, clips(), Some(same())));
    assert_eq!(many[0].error, None);
}

#[test]
fn what_cannot_be_split_is_refused() {
    let job = Job::new(12, 6, 3);
    let whole = || ModuleOptimizer::from(adamw());
    for zero in [Zero::stage2(whole()), Zero::stage3(whole())] {
        let many = on_ranks(&job, || sharded(2, &zero));
        assert_fails(&many, &["whole parameters", "stage1"]);
    }
    let f16 = Zero::stage1(adamw()).mixed_precision(MixedPrecisionPolicy::f16());
    let many = on_ranks(&job, || sharded(2, &f16));
    assert_fails(&many, &["f16", "bf16"]);
    let policy = MixedPrecisionPolicy::f16();
    for zero in [
        Zero::stage3(adamw()).fully_shard(move |settings| settings.mixed_precision(policy)),
        Zero::stage1(adamw()).sharded_optimizer(|config| ShardedOptimizerConfig {
            loss_scale: Some(LossScale::default()),
            ..config
        }),
    ] {
        assert_fails(&on_ranks(&job, || sharded(2, &zero)), &["f16", "bf16"]);
    }
    let averages = Zero::stage3(adamw()).fully_shard(|settings| settings.average_micro_steps(true));
    let many = on_ranks(&job, || sharded(2, &averages));
    assert_fails(&many, &["averages micro-steps"]);
    let mut in_16_bits = job.clone();
    (in_16_bits.parameters, in_16_bits.dtype) = (DType::BF16, DType::BF16);
    let many = on_ranks(&in_16_bits, || sharded(2, &Zero::stage1(adamw())));
    assert_fails(&many, &["first.weight", "BF16", "mixed_precision"]);
    let other = |net: Net, _: &ProcessGroup| net.with_another_head();
    let many = on_ranks(&job, || sharded(2, &Zero::stage3(adamw())).prepare(other));
    assert_fails(&many, &["prepare", "second.weight"]);
}

#[test]
fn a_panic_on_one_rank_ends_all_stages() {
    let mut job = Job::new(24, 8, 3);
    job.panics_at = Some(7);
    for (name, zero) in stages() {
        let many = on_ranks(&job, || sharded(3, &zero));
        let error = many.error.expect("an error");
        assert!(error.contains("item 7 is too much"), "{name}: {error}");
    }
}
