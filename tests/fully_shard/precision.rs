//! Master weights, loss scales, norms: the same in every stage.

use std::sync::Mutex;

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_dist::data_parallel::{ParameterTable, RankOrderAccumulator};
use burn_dist::{ProcessGroup, Result, World};
use burn_zero::{
    FullyShard, LossScale, MixedPrecisionPolicy, ShardedOptimizer, ShardedOptimizerConfig,
    clip_grad_norm,
};
use tests::run_group;

use crate::adamw;
use crate::models::Toy;
use crate::runs::{LR, STEPS, bits};

/// Computes in the element type of its parameters.
#[derive(Module, Debug)]
struct Words {
    words: Embedding,
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Toy for Words {
    fn init(device: &Device) -> Self {
        Self {
            words: EmbeddingConfig::new(11, 6).init(device),
            norm: LayerNormConfig::new(6).init(device),
            up: LinearConfig::new(6, 9).init(device),
            down: LinearConfig::new(9, 1).init(device),
        }
    }

    fn loss(&self, item: usize, device: &Device) -> Tensor<1> {
        let tokens: Vec<i32> = (0..6).map(|i| ((item * 7 + i * 5) % 11) as i32).collect();
        let tokens = Tensor::<1, Int>::from_data(TensorData::new(tokens, [6]), device);
        let x = self
            .norm
            .forward(self.words.forward(tokens.reshape([2, 3])));
        let x = burn::tensor::activation::relu(self.up.forward(x));
        self.down.forward(x).square().mean()
    }
}

fn started() -> Words {
    let start = Words::init(&Device::flex().autodiff());
    ParameterTable::of(&start).expect("nothing is wrapped");
    start
}

/// Stage 3, or with `whole` the same without splitting, over `virtual_ranks` items per rank.
fn fully(
    start: Words,
    group: &ProcessGroup,
    whole: bool,
    virtual_ranks: usize,
    policy: MixedPrecisionPolicy,
) -> Result<Vec<Vec<u8>>> {
    let device = Device::flex().autodiff();
    let settings = FullyShard::new(group)
        .least_unit_bytes(0)
        .average_micro_steps(true)
        .whole_below(if whole { usize::MAX } else { 0 })
        .mixed_precision(policy);
    let (sharded, mut model) = settings.wrap(start)?;
    let mut optimizer = adamw();
    let items = group.size() * virtual_ranks;
    for step in 0..STEPS {
        let first = step * items + group.index() * virtual_ranks;
        for item in first..first + virtual_ranks - 1 {
            sharded.no_sync(|| model.loss(item, &device).backward());
        }
        let loss = model.loss(first + virtual_ranks - 1, &device);
        let gradients = sharded.gradients(loss.backward(), &model)?;
        model = optimizer.step(LR, model, gradients);
    }
    Ok(bits(&model.materialize()))
}

fn stage_two(
    start: Words,
    group: &ProcessGroup,
    policy: MixedPrecisionPolicy,
    offload: Option<Device>,
) -> Result<Vec<Vec<u8>>> {
    let device = Device::flex().autodiff();
    let config = ShardedOptimizerConfig {
        average_micro_steps: true,
        mixed_precision: policy,
        offload,
        ..ShardedOptimizerConfig::default()
    };
    let optimizer = AdamWConfig::new().with_weight_decay(0.1).build();
    let (mut sharded, mut model) = ShardedOptimizer::wrap_with(start, optimizer, group, config)?;
    for step in 0..STEPS {
        let loss = model.loss(step * group.size() + group.index(), &device);
        model = sharded.step(LR, model, loss.backward())?;
    }
    Ok(bits(&model))
}

fn on_ranks(
    n: usize,
    run: impl Fn(Words, &ProcessGroup) -> Result<Vec<Vec<u8>>> + Send + Sync,
    start: &Words,
) -> Vec<Vec<u8>> {
    let shared = Mutex::new(start.clone());
    let found = run_group(n, |group| {
        let start = shared.lock().expect("not poisoned").clone();
        run(start, &group)
    });
    let mut found = found.into_iter().map(|found| found.expect("no fault"));
    let first = found.next().expect("a rank");
    assert!(found.all(|other| other == first), "ranks differ");
    first
}

#[test]
fn sixteen_bit_models_have_masters_in_every_stage() {
    let start = started();
    let plain = on_ranks(
        1,
        |s, g| fully(s, g, false, 2, MixedPrecisionPolicy::default()),
        &start,
    );
    for policy in [MixedPrecisionPolicy::bf16(), MixedPrecisionPolicy::f16()] {
        let alone = on_ranks(1, |s, g| fully(s, g, true, 2, policy), &start);
        assert_eq!(alone[0].len() * 2, plain[0].len(), "16 bits");
        for whole in [false, true] {
            let split = on_ranks(2, |s, g| fully(s, g, whole, 1, policy), &start);
            assert!(split == alone, "whole: {whole}");
        }
        let stage_two = on_ranks(2, |s, g| stage_two(s, g, policy, None), &start);
        assert!(stage_two == alone, "stage 2");
    }
}

#[test]
fn a_model_of_sixteen_bits_keeps_masters_of_its_own_accord() {
    let start = started().map(&mut Cast);
    let settings = MixedPrecisionPolicy::default();
    let alone = on_ranks(1, |s, g| fully(s, g, true, 2, settings), &start);
    let split = on_ranks(2, |s, g| fully(s, g, false, 1, settings), &start);
    let stage_two = on_ranks(2, |s, g| stage_two(s, g, settings, None), &start);
    assert!(split == alone && stage_two == alone);
}

struct Cast;

impl burn::module::ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.detach().cast(DType::BF16).detach().require_grad())
    }
}

#[test]
fn state_in_host_memory_changes_no_bit() {
    let start = started();
    let policy = MixedPrecisionPolicy::default();
    let here = on_ranks(2, |s, g| stage_two(s, g, policy, None), &start);
    let there = on_ranks(
        2,
        |s, g| stage_two(s, g, policy, Some(Device::flex())),
        &start,
    );
    assert!(here == there);
}

/// An overflow on one rank skips the step on both and halves the scale on both.
#[test]
fn an_overflow_is_everybodys() {
    let start = started();
    let shared = Mutex::new(start.clone());
    let device = Device::flex().autodiff();
    let found = run_group(2, |group| {
        let start = shared.lock().expect("not poisoned").clone();
        let first = bits(&start);
        let infinite = |loss: Tensor<1>| match group.index() {
            0 => loss.mul_scalar(f32::INFINITY),
            _ => loss,
        };
        let (sharded, model) = FullyShard::new(&group)
            .least_unit_bytes(0)
            .wrap(start.clone())?;
        let mut scale = LossScale::default();
        let loss = infinite(scale.scale(model.loss(0, &device)));
        let gradients = sharded.gradients(loss.backward(), &model)?;
        let skipped = sharded.unscale(gradients, &model, &mut scale)?;
        assert!(skipped.is_none());
        assert_eq!(scale.scale, 32768.0);
        let loss = scale.scale(model.loss(0, &device));
        let gradients = sharded.gradients(loss.backward(), &model)?;
        let gradients = sharded.unscale(gradients, &model, &mut scale)?;
        let model = adamw().step(LR, model, gradients.expect("no overflow"));
        let third = bits(&model.materialize());
        let config = ShardedOptimizerConfig {
            average_micro_steps: true,
            loss_scale: Some(LossScale::default()),
            ..ShardedOptimizerConfig::default()
        };
        let optimizer = AdamWConfig::new().with_weight_decay(0.1).build();
        let (mut sharded, mut model) =
            ShardedOptimizer::wrap_with(start, optimizer, &group, config)?;
        let loss = infinite(sharded.scale(model.loss(0, &device)));
        model = sharded.step(LR, model, loss.backward())?;
        assert!(bits(&model) == first, "skipped");
        assert_eq!(sharded.loss_scale().map(|scale| scale.scale), Some(32768.0));
        let loss = sharded.scale(model.loss(0, &device));
        model = sharded.step(LR, model, loss.backward())?;
        Ok((third, bits(&model)))
    });
    // A scale is a power of two: nothing but it changes.
    let gradients = GradientsParams::from_grads(start.loss(0, &device).backward(), &start);
    let plain = bits(&adamw().step(LR, start, gradients));
    for found in found {
        let (third, second) = found.expect("no fault");
        assert!(third == plain && second == plain);
    }
}

#[test]
fn the_norm_of_stages_one_and_two_is_that_of_the_whole_model() {
    let start = started();
    let device = Device::flex().autodiff();
    for n in [2, 3] {
        let mut sum = RankOrderAccumulator::new();
        for rank in 0..n {
            let loss = start.loss(rank, &device);
            sum.add(&start, GradientsParams::from_grads(loss.backward(), &start));
            sum.end_rank(&start);
        }
        let (clipped, norm) = clip_grad_norm(sum.mean(&start), &start, 0.01).expect("a norm");
        let expected = bits(&adamw().step(LR, start.clone(), clipped));
        let build = || AdamWConfig::new().with_weight_decay(0.1);
        for element_wise in [true, false] {
            let shared = Mutex::new(start.clone());
            let found = run_group(n, |group| {
                let start = shared.lock().expect("not poisoned").clone();
                let config = ShardedOptimizerConfig {
                    max_grad_norm: Some(0.01),
                    ..ShardedOptimizerConfig::default()
                };
                let (mut sharded, model) = match element_wise {
                    true => ShardedOptimizer::wrap_with(start, build().build(), &group, config)?,
                    false => ShardedOptimizer::wrap_with(start, build().init(), &group, config)?,
                };
                let loss = model.loss(group.index(), &device);
                let model = sharded.step(LR, model, loss.backward())?;
                Ok((sharded.last_grad_norm(), bits(&model)))
            });
            for found in found {
                let (found, parameters) = found.expect("no fault");
                assert_eq!(found.map(f64::to_bits), Some(norm.to_bits()));
                assert!(parameters == expected, "{n} ranks");
            }
        }
    }
}

/// Each micro-step is reduced on its own: sums over ranks, then over micro-steps.
#[test]
fn micro_steps_reduced_one_by_one() {
    let start = started();
    let device = Device::flex().autodiff();
    let mut total = GradientsAccumulator::new();
    for micro in 0..2 {
        let mut sum = RankOrderAccumulator::new();
        for rank in 0..2 {
            let loss = start.loss(2 * micro + rank, &device);
            sum.add(&start, GradientsParams::from_grads(loss.backward(), &start));
            sum.end_rank(&start);
        }
        total.accumulate(&start, sum.mean(&start));
    }
    let expected = bits(&adamw().step(LR, start.clone(), total.grads()));
    let shared = Mutex::new(start);
    let found = run_group(2, |group| {
        let start = shared.lock().expect("not poisoned").clone();
        let optimizer = AdamWConfig::new().with_weight_decay(0.1).build();
        let (mut sharded, model) = ShardedOptimizer::wrap(start.clone(), optimizer, &group)?;
        sharded.accumulate(model.loss(group.index(), &device).backward())?;
        let loss = model.loss(2 + group.index(), &device);
        let second = bits(&sharded.step(LR, model, loss.backward())?);
        let (sharded, model) = FullyShard::new(&group).least_unit_bytes(0).wrap(start)?;
        let mut sum = GradientsAccumulator::new();
        for micro in 0..2 {
            let loss = model.loss(2 * micro + group.index(), &device);
            sum.accumulate(&model, sharded.gradients(loss.backward(), &model)?);
        }
        let third = bits(&adamw().step(LR, model, sum.grads()).materialize());
        Ok((second, third))
    });
    for found in found {
        let (second, third) = found.expect("no fault");
        assert!(second == expected, "stage 2");
        assert!(third == expected, "stage 3");
    }
}

#[test]
fn means_of_two_kinds_of_micro_steps_and_norms_that_are_none_are_refused() {
    let start = Mutex::new(started());
    let device = Device::flex().autodiff();
    let found = run_group(2, |group| {
        let start = start.lock().expect("not poisoned").clone();
        let config = ShardedOptimizerConfig {
            average_micro_steps: true,
            ..ShardedOptimizerConfig::default()
        };
        let optimizer = AdamWConfig::new().build();
        let (mut sharded, model) =
            ShardedOptimizer::wrap_with(start.clone(), optimizer, &group, config)?;
        sharded.no_sync(|| model.loss(0, &device).backward());
        let mixed = sharded.accumulate(model.loss(1, &device).backward());
        let loss = start.loss(0, &device).backward();
        let gradients = GradientsParams::from_grads(loss, &start);
        let negative = clip_grad_norm(gradients, &start, -1.0).map(drop);
        Ok([mixed, negative].map(|outcome| outcome.expect_err("refused").to_string()))
    });
    for found in found {
        let [mixed, negative] = found.expect("no fault");
        assert!(mixed.contains("1 micro-steps of no_sync"), "{mixed}");
        assert!(negative.contains("a norm of -1"), "{negative}");
    }
}

/// Every parameter's rank is found in the wrapped model under its own path.
#[test]
fn one_rank_is_a_group_too() {
    #[derive(Default)]
    struct Paths(Vec<String>, Vec<String>);
    impl ModuleVisitor for Paths {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.0.push(name.into());
        }
        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.0.pop();
        }
        fn visit_float<const D: usize>(&mut self, _param: &Param<Tensor<D>>) {
            let path = self.0.join(".");
            if !self.1.contains(&path) {
                self.1.push(path);
            }
        }
    }
    let start = started();
    let group = World::solo().whole().expect("a group of one");
    let mut before = Paths::default();
    start.visit(&mut before);
    let (_, model) = FullyShard::new(&group).wrap(start).expect("no fault");
    let mut after = Paths::default();
    model.visit(&mut after);
    assert_eq!(before.1, after.1);
    // The stand-ins have the parameters' shapes.
    assert_eq!(model.up.weight.shape().dims(), [6, 9]);
}
