//! Data parallelism: N ranks give what one rank gives that accumulates their micro-batches, bit for
//! bit; overlapped, bucketed, with unused and shared parameters, uneven inputs.

#[path = "data_parallel/misuse.rs"]
mod misuse;
#[path = "data_parallel/models.rs"]
mod models;

use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{DType, Device, Tensor};
use burn_dist::communicator::ReduceOp;
use burn_dist::data::TokenWeight;
use burn_dist::data_parallel::{
    BucketSizes, DataParallel, DataParallelConfig, GradientEvent, NaiveDataParallel,
    RankOrderAccumulator, parameter_hash,
};
use burn_dist::{ProcessGroup, Result};
use models::{Branches, fill, linear, mlp};
use tests::run_group;

fn tiny_buckets(bytes: usize) -> DataParallelConfig {
    DataParallelConfig {
        bucket_sizes: BucketSizes {
            first: bytes,
            rest: bytes,
        },
        average_micro_steps: true,
        ..DataParallelConfig::default()
    }
}

fn adamw() -> ModuleOptimizer {
    AdamWConfig::new().with_weight_decay(0.1).init()
}

const STEPS: usize = 10;

/// One rank in the grouping of `n` ranks with `micro` micro-steps each.
fn reference(n: usize, micro: usize) -> String {
    let device = Device::flex().autodiff();
    let mut model = mlp(0, &device);
    let mut optimizer = adamw();
    for step in 0..STEPS {
        let mut sum = RankOrderAccumulator::new();
        for rank in 0..n {
            for m in 0..micro {
                let loss = model.loss((step * n + rank) * micro + m);
                sum.add(&model, GradientsParams::from_grads(loss.backward(), &model));
            }
            sum.end_rank(&model);
        }
        let gradients = sum.mean(&model);
        model = optimizer.step(1e-2, model, gradients);
    }
    parameter_hash(&model)
}

fn parallel(group: &ProcessGroup, micro: usize, config: DataParallelConfig) -> Result<String> {
    let device = Device::flex().autodiff();
    let (n, rank) = (group.size(), group.index());
    let (parallel, mut model) = DataParallel::wrap_with(mlp(rank * 10, &device), group, config)?;
    let mut optimizer = adamw();
    for step in 0..STEPS {
        let item = |m| (step * n + rank) * micro + m;
        for m in 0..micro - 1 {
            let loss = model.loss(item(m));
            parallel.no_sync(|| loss.backward());
        }
        let loss = model.loss(item(micro - 1));
        let gradients = parallel.sync(loss.backward(), &model)?;
        model = optimizer.step(1e-2, model, gradients);
    }
    parallel.check_replicas(&model)?;
    Ok(parameter_hash(&model))
}

#[test]
fn n_ranks_equal_one_rank_bit_for_bit() {
    for n in [1, 2, 3, 4] {
        for micro in [1, 2, 3] {
            let expected = reference(n, micro);
            for bytes in [0, 300, 1_000_000] {
                let hashes = run_group(n, |group| parallel(&group, micro, tiny_buckets(bytes)));
                for hash in hashes {
                    assert_eq!(
                        hash.expect("no fault"),
                        expected,
                        "{n} ranks, {micro} micro-steps, buckets of {bytes} bytes"
                    );
                }
            }
        }
    }
}

#[test]
fn the_plain_twin_gives_the_same_bits() {
    let (n, micro) = (3, 2);
    let expected = reference(n, micro);
    let hashes = run_group(n, |group| {
        let device = Device::flex().autodiff();
        let rank = group.index();
        let (_, model) = DataParallel::wrap(mlp(rank, &device), &group)?;
        let mut model = model.materialize();
        let naive = NaiveDataParallel::new(&group).with_micro_steps(micro);
        let mut optimizer = adamw();
        for step in 0..STEPS {
            let mut sum = burn::optim::GradientsAccumulator::new();
            for m in 0..micro {
                let loss = model.loss((step * n + rank) * micro + m);
                sum.accumulate(&model, GradientsParams::from_grads(loss.backward(), &model));
            }
            let gradients = naive.sync(sum.grads(), &model)?;
            model = optimizer.step(1e-2, model, gradients);
        }
        Ok(parameter_hash(&model))
    });
    for hash in hashes {
        assert_eq!(hash.expect("no fault"), expected);
    }
}

#[test]
fn buckets_are_launched_while_the_backward_pass_still_runs() {
    let results = run_group(2, |group| {
        let device = Device::flex().autodiff();
        let (parallel, model) = DataParallel::wrap_with(mlp(0, &device), &group, tiny_buckets(0))?;
        let loss = model.loss(group.index());
        parallel.sync(loss.backward(), &model)?;
        let names: Vec<String> = parallel
            .parameters()
            .specs()
            .iter()
            .map(|spec| spec.name.clone())
            .collect();
        Ok((
            parallel.last_events(),
            names,
            parallel.plan().buckets().len(),
        ))
    });
    for result in results {
        let (events, names, num_buckets) = result.expect("no fault");
        let position = |wanted: GradientEvent| {
            events
                .iter()
                .position(|event| *event == wanted)
                .unwrap_or_else(|| panic!("{wanted:?} is not in {events:?}"))
        };
        let ready = |name: &str| {
            let parameter = names.iter().position(|n| n == name).expect("a parameter");
            position(GradientEvent::Ready { parameter })
        };
        let first_launch = position(GradientEvent::Launched { bucket: 0 });
        for name in ["first.weight", "first.bias", "norm.gamma", "second.weight"] {
            assert!(first_launch < ready(name), "{name}: {events:?}");
        }
        // Each layer's gradient comes when its own backward pass has run, not at the end.
        assert!(ready("third.weight") < ready("second.weight"));
        assert!(ready("second.weight") < ready("norm.gamma"));
        assert!(ready("norm.gamma") < ready("first.weight"));
        let launches: Vec<usize> = events
            .iter()
            .filter_map(|event| match event {
                GradientEvent::Launched { bucket } => Some(*bucket),
                GradientEvent::Ready { .. } => None,
            })
            .collect();
        assert_eq!(launches, (0..num_buckets).collect::<Vec<_>>());
        assert!(position(GradientEvent::Launched { bucket: 1 }) < ready("first.weight"));
    }
}

/// As a `TrainStep` does, also after a micro-step.
#[test]
fn buckets_are_launched_early_where_gradients_were_collected_before() {
    let results = run_group(2, |group| {
        let device = Device::flex().autodiff();
        let (parallel, model) = DataParallel::wrap_with(mlp(0, &device), &group, tiny_buckets(0))?;
        let collected = |item| {
            let loss = model.loss(item);
            GradientsParams::from_grads(loss.backward(), &model)
        };
        parallel.no_sync_collected(&model, || (collected(group.index()), ()));
        let micro_step = parallel.pending_micro_steps();
        let gradients = parallel.sync_collected(collected(2 + group.index()), &model)?;
        let specs = parallel.parameters().specs();
        let first = specs.iter().position(|spec| spec.name == "first.weight");
        Ok((
            parallel.last_events(),
            first,
            micro_step,
            gradients.len() == specs.len(),
        ))
    });
    for result in results {
        let (events, first, micro_step, all) = result.expect("no fault");
        assert_eq!((micro_step, all), (1, true));
        let parameter = first.expect("a parameter");
        let ready = |event: &GradientEvent| *event == GradientEvent::Ready { parameter };
        let launched = |event: &GradientEvent| *event == GradientEvent::Launched { bucket: 0 };
        let last_ready = events.iter().rposition(ready).expect("its gradient");
        assert_eq!(events.iter().filter(|event| ready(event)).count(), 2);
        let launched = events.iter().position(launched).expect("a bucket");
        assert!(launched < last_ready, "{events:?}");
    }
}

#[test]
fn no_sync_synchronises_once_per_optimizer_step() {
    #[derive(Module, Debug)]
    struct One {
        weight: Param<Tensor<1>>,
    }
    let results = run_group(2, |group| {
        let device = Device::flex().autodiff();
        let one = One {
            weight: Param::from_tensor(Tensor::from_data([1.0f32], &device)),
        };
        let (parallel, model) = DataParallel::wrap(one, &group)?;
        let before = group.traffic().calls;
        // Four micro-steps add up to 4 on rank 0 and to 7 on rank 1.
        let slope = [1.0, 1.75][group.index()];
        for _ in 0..3 {
            let loss = model.weight.val() * slope;
            parallel.no_sync(|| loss.backward());
        }
        let loss = model.weight.val() * slope;
        let gradients = parallel.sync(loss.backward(), &model)?;
        let gradient = gradients.get::<1>(model.weight.id).expect("used");
        Ok((
            gradient.into_scalar::<f32>(),
            group.traffic().calls - before,
        ))
    });
    for result in results {
        assert_eq!(result.expect("no fault"), (5.5, 1));
    }
}

#[test]
fn unused_and_twice_used_parameters_are_right() {
    let n = 2;
    let device = Device::flex().autodiff();
    let expected_after = |micro: usize| {
        let model = Branches::new(&device);
        let mut sum = RankOrderAccumulator::new();
        for rank in 0..n {
            for m in 0..micro {
                let loss = model.loss(rank, m);
                sum.add(&model, GradientsParams::from_grads(loss.backward(), &model));
            }
            sum.end_rank(&model);
        }
        let gradients = sum.mean(&model);
        let mut optimizer = AdamWConfig::new().with_weight_decay(0.1).init();
        optimizer.step(0.1, model, gradients)
    };
    for (bytes, micro) in [(0, 1), (100, 1), (10_000, 1), (0, 3), (10_000, 3)] {
        let results = run_group(n, |group| {
            let device = Device::flex().autodiff();
            let (parallel, mut model) =
                DataParallel::wrap_with(Branches::new(&device), &group, tiny_buckets(bytes))?;
            for m in 0..micro - 1 {
                let loss = model.loss(group.index(), m);
                parallel.no_sync(|| loss.backward());
            }
            // A forward pass without a backward pass changes nothing.
            let _ = model.loss(group.index(), 9);
            let loss = model.loss(group.index(), micro - 1);
            let gradients = parallel.sync(loss.backward(), &model)?;
            assert!(gradients.get::<2>(model.nowhere.weight.id).is_none());
            let mut optimizer = AdamWConfig::new().with_weight_decay(0.1).init();
            model = optimizer.step(0.1, model, gradients);
            Ok(model.materialize())
        });
        for result in results {
            let hash = parameter_hash(&result.expect("no fault"));
            let expected = parameter_hash(&expected_after(micro));
            assert_eq!(
                hash, expected,
                "buckets of {bytes} bytes, {micro} micro-steps"
            );
        }
    }
    let expected = expected_after(1);
    let twin = run_group(n, |group| {
        let model = Branches::new(&Device::flex().autodiff());
        let loss = model.loss(group.index(), 0);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        let gradients = NaiveDataParallel::new(&group).sync(gradients, &model)?;
        let mut optimizer = AdamWConfig::new().with_weight_decay(0.1).init();
        Ok(parameter_hash(&optimizer.step(0.1, model, gradients)))
    });
    for hash in twin {
        assert_eq!(hash.expect("no fault"), parameter_hash(&expected));
    }
    let start = Branches::new(&device).nowhere.weight.val().into_data();
    assert_eq!(expected.nowhere.weight.val().into_data(), start);
}

#[test]
fn every_token_counts_the_same() {
    // Rank 0 has one token of loss 4, rank 1 three tokens of mean 2.
    let results = run_group(2, |group| {
        let (tokens, mean) = [(1, 4.0), (3, 2.0)][group.index()];
        let weight = TokenWeight::over(&group, &[tokens])?.weight(tokens);
        Ok(group.all_reduce_values(vec![mean * weight], ReduceOp::Mean)?[0])
    });
    for result in results {
        assert_eq!(result.expect("no fault"), 2.5);
    }
    // Two micro-steps on one rank, one on the other; a step without tokens is refused on both.
    let results = run_group(2, |group| {
        let tokens: &[u64] = [&[1, 5][..], &[2]][group.index()];
        let weight = TokenWeight::over(&group, tokens)?.weight(2);
        let refused = TokenWeight::over(&group, &[0]).is_err();
        Ok((weight, refused))
    });
    for result in results {
        assert_eq!(result.expect("no fault"), (2.0 * 3.0 / 8.0, true));
    }
}

#[test]
fn sixteen_bit_gradients_are_reduced_in_f32() {
    #[derive(Module, Debug)]
    struct Half {
        weight: Param<Tensor<1>>,
    }
    let results = run_group(3, |group| {
        let device = Device::flex().autodiff();
        let start = Tensor::<1>::from_data([1.0f32, 2.0], (&device, DType::BF16));
        let half = Half {
            weight: Param::from_tensor(start),
        };
        let (parallel, model) = DataParallel::wrap(half, &group)?;
        assert_eq!(parallel.plan().num_bytes(), 8);
        // 1 + 2^-7 + 2^-7: each partial sum in bf16 would stay at 1.
        let slope = [1.0, 0.0078125 / 2.0, 0.0078125 / 2.0][group.index()];
        let loss = (model.weight.val() * slope).sum();
        let gradients = parallel.sync(loss.backward(), &model)?;
        let gradient = gradients.get::<1>(model.weight.id).expect("used");
        assert_eq!(gradient.dtype(), DType::BF16);
        Ok(gradient
            .cast(DType::F32)
            .into_data()
            .try_to_vec::<f32>()
            .expect("f32"))
    });
    for result in results {
        let expected = half::bf16::from_f32((1.0 + 0.0078125) / 3.0).to_f32();
        assert_eq!(result.expect("no fault"), vec![expected; 2]);
    }
}

#[derive(Module, Debug)]
struct Normed {
    first: Linear,
    norm: BatchNorm,
}

#[test]
fn running_states_belong_to_their_rank() {
    let device = Device::flex().autodiff();
    let shared = Normed {
        first: linear(3, 4, 0, &device),
        norm: BatchNormConfig::new(4).init(&device),
    };
    let results = run_group(2, |group| {
        let device = Device::flex().autodiff();
        let (parallel, mut model) = DataParallel::wrap(shared.clone(), &group)?;
        let mut optimizer = SgdConfig::new().init();
        for step in 0..3 {
            let x = fill([5, 3], 10 * step + group.index(), &device);
            let x = model.first.forward(x).unsqueeze_dim::<3>(2);
            let loss = model.norm.forward(x).square().mean();
            let gradients = parallel.sync(loss.backward(), &model)?;
            model = optimizer.step(0.1, model, gradients);
        }
        let mean = model.valid().norm.running_mean.value();
        Ok(mean.into_data().try_to_vec::<f32>().expect("f32"))
    });
    let means: Vec<_> = results.into_iter().map(|r| r.expect("no fault")).collect();
    assert_ne!(means[0], means[1], "each rank sees its own batches");
    let untouched = shared.norm.running_mean.value_sync();
    assert_eq!(
        untouched.into_data().try_to_vec::<f32>().expect("f32"),
        [0.0; 4]
    );
}
