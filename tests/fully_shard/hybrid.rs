//! Replicas of shards; micro-steps; norms; clones.

use std::sync::{Arc, Mutex};

use burn::module::{Module, ParamGroup};
use burn::nn::{LinearConfig, Lstm, LstmConfig};
use burn::optim::{AdamWConfig, GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor};
use burn_dist::communicator::{CommunicatorOptions, InProcessHub, Members};
use burn_dist::data_parallel::{ParameterTable, RankOrderAccumulator};
use burn_dist::{ProcessGroup, Result};
use burn_zero::{FullyShard, clip_grad_norm};
use tests::{run_group, run_threads};

use crate::adamw;
use crate::models::{Encoder, Partly, Tied, Toy, fill};
use crate::runs::{LR, STEPS, bits};
use crate::stack::Stack;

/// Ranks in `r` replicas of `s` shards: this rank's group of shards, and of replicas.
pub(crate) fn grid<T: Send>(
    r: usize,
    s: usize,
    f: impl Fn(ProcessGroup, ProcessGroup) -> T + Send + Sync,
) -> Vec<T> {
    let options = CommunicatorOptions {
        timeout: std::time::Duration::from_secs(20),
        ..CommunicatorOptions::default()
    };
    let hub = InProcessHub::new();
    run_threads(r * s, |rank| {
        let connect = |name: String, ranks: Vec<usize>| {
            let members = Members::new(name.as_str(), &ranks, rank).expect("a valid group");
            ProcessGroup::new(Arc::new(hub.connect(&members, options, None)))
        };
        let (row, column) = (rank / s, rank % s);
        let shard = connect(
            format!("shard {row}"),
            (0..s).map(|i| row * s + i).collect(),
        );
        let replicate = connect(
            format!("replicate {column}"),
            (0..r).map(|i| i * s + column).collect(),
        );
        f(shard, replicate)
    })
}

fn started<M: Toy>() -> M {
    let start = M::init(&Device::flex().autodiff());
    ParameterTable::of(&start).expect("nothing is wrapped");
    start
}

/// Sums over micro-steps, then ranks of a replica, then replicas; one division.
fn reference<M: Toy>(start: &M, r: usize, s: usize, micro: usize) -> Vec<Vec<u8>> {
    let device = Device::flex().autodiff();
    let mut model = start.valid().train();
    let mut optimizer = adamw();
    for step in 0..STEPS {
        let mut sum = RankOrderAccumulator::in_replicas_of(s);
        for rank in 0..r * s {
            for item in (step * r * s + rank) * micro..(step * r * s + rank + 1) * micro {
                let loss = model.loss(item, &device);
                sum.add(&model, GradientsParams::from_grads(loss.backward(), &model));
            }
            sum.end_rank(&model);
        }
        let gradients = sum.mean(&model);
        model = optimizer.step(LR, model, gradients);
    }
    bits(&model)
}

fn hybrid<M: Toy>(
    start: M,
    shard: &ProcessGroup,
    replicate: &ProcessGroup,
    micro: usize,
) -> Result<Vec<Vec<u8>>> {
    let device = Device::flex().autodiff();
    let settings = FullyShard::new(shard).replicate(replicate);
    let settings = settings.least_unit_bytes(0).average_micro_steps(true);
    let (sharded, mut model) = settings.wrap(start)?;
    let mut optimizer = adamw();
    let (r, s) = (replicate.size(), shard.size());
    for step in 0..STEPS {
        let first = ((step * r + replicate.index()) * s + shard.index()) * micro;
        for item in first..first + micro - 1 {
            sharded.no_sync(|| model.loss(item, &device).backward());
        }
        let loss = model.loss(first + micro - 1, &device);
        let gradients = sharded.gradients(loss.backward(), &model)?;
        model = optimizer.step(LR, model, gradients);
    }
    Ok(bits(&model.materialize()))
}

fn check_hybrid<M: Toy + 'static>(r: usize, s: usize, micro: usize) {
    let start = started::<M>();
    let expected = reference(&start, r, s, micro);
    let start = Mutex::new(start);
    let found = grid(r, s, |shard, replicate| {
        let start = start.lock().expect("not poisoned").clone();
        hybrid(start, &shard, &replicate, micro)
    });
    for found in found {
        assert!(
            found.expect("no fault") == expected,
            "{r}x{s}, {micro} micro-steps"
        );
    }
}

#[test]
fn replicas_of_shards_and_micro_steps() {
    check_hybrid::<Encoder>(2, 2, 1);
    check_hybrid::<Encoder>(2, 2, 2);
    check_hybrid::<Tied>(2, 2, 4);
    check_hybrid::<Partly>(4, 1, 2);
    check_hybrid::<Stack>(1, 4, 2);
    check_hybrid::<Stack>(2, 2, 2);
    check_hybrid::<Stack>(3, 2, 1);
    check_hybrid::<Stack>(2, 3, 3);
}

#[test]
fn groups_of_another_mesh_are_refused() {
    // Both over the same ranks.
    let errors = run_group(2, |group| {
        let start = started::<Stack>();
        let outcome = FullyShard::new(&group).replicate(&group).wrap(start);
        Ok(outcome.map(drop).expect_err("no grid"))
    });
    for error in errors {
        let error = error.expect("no fault").to_string();
        assert!(error.contains("not a row and a column"), "{error}");
    }
}

#[test]
fn the_norm_is_that_of_the_whole_model() {
    let start = started::<Encoder>();
    let device = Device::flex().autodiff();
    for n in [1, 2, 3, 4] {
        let mut sum = RankOrderAccumulator::new();
        for rank in 0..n {
            let loss = start.loss(rank, &device);
            sum.add(&start, GradientsParams::from_grads(loss.backward(), &start));
            sum.end_rank(&start);
        }
        let gradients = sum.mean(&start);
        let (clipped, expected) = clip_grad_norm(gradients, &start, 0.01).expect("a norm");
        assert!(expected > 0.01);
        let stepped = bits(&adamw().step(LR, start.clone(), clipped));
        let shared = Mutex::new(start.clone());
        let found = run_group(n, |group| {
            let start = shared.lock().expect("not poisoned").clone();
            let settings = FullyShard::new(&group).least_unit_bytes(0).whole_below(9);
            let (sharded, model) = settings.wrap(start)?;
            let loss = model.loss(group.index(), &device);
            let gradients = sharded.gradients(loss.backward(), &model)?;
            let (gradients, norm) = sharded.clip_grad_norm(gradients, &model, 0.01)?;
            let model = adamw().step(LR, model, gradients);
            Ok((norm, bits(&model.materialize())))
        });
        for found in found {
            let (norm, parameters) = found.expect("no fault");
            assert_eq!(norm.to_bits(), expected.to_bits(), "{n} ranks");
            assert!(parameters == stepped, "{n} ranks");
        }
    }
}

#[test]
fn three_and_four_have_the_norm_five() {
    let found = run_group(2, |group| {
        let device = Device::flex().autodiff();
        let linear = LinearConfig::new(2, 1).with_bias(false).init(&device);
        let (sharded, model) = FullyShard::new(&group).wrap(linear)?;
        let x = Tensor::<2>::from_data([[3.0, 4.0]], &device);
        let loss = model.forward(x).sum();
        let gradients = sharded.gradients(loss.backward(), &model)?;
        let (gradients, norm) = sharded.clip_grad_norm(gradients, &model, 1.0)?;
        let before = bits_of(&model);
        let model = SgdConfig::new().init().step(1.0, model, gradients);
        let moved: Vec<f32> = before
            .iter()
            .zip(bits_of(&model))
            .map(|(a, b)| a - b)
            .collect();
        Ok((norm, moved))
    });
    for found in found {
        let (norm, moved) = found.expect("no fault");
        assert_eq!(norm, 5.0);
        assert!((moved[0] - 0.6).abs() < 1e-6 && (moved[1] - 0.8).abs() < 1e-6);
    }
}

fn bits_of(model: &burn::nn::Linear) -> Vec<f32> {
    let weight = model.clone().materialize().weight.val();
    weight.into_data().try_to_vec::<f32>().expect("f32")
}

#[test]
fn a_clone_keeps_its_values_and_validation_sees_the_new_ones() {
    let start = Mutex::new(started::<Stack>());
    let found = run_group(2, |group| {
        let device = Device::flex().autodiff();
        let start = start.lock().expect("not poisoned").clone();
        let first = bits(&start);
        let (sharded, mut model) = FullyShard::new(&group).least_unit_bytes(0).wrap(start)?;
        let kept = model.clone();
        let loss = model.loss(0, &device);
        let gradients = sharded.gradients(loss.backward(), &model)?;
        model = adamw().step(LR, model, gradients);
        assert!(bits(&kept.materialize()) == first);
        let whole = model.clone().materialize();
        assert!(bits(&whole) != first);
        let x = fill([2, crate::stack::WIDTH], 5, &Device::flex());
        let expected = whole.valid().forward(x.clone()).into_data();
        assert_eq!(model.valid().forward(x).into_data(), expected);
        sharded.check()
    });
    found.into_iter().for_each(|found| found.expect("no fault"));
}

/// Saved after two steps, wrapped again, and continued: the run that was not interrupted.
#[test]
fn a_run_goes_on_from_what_was_saved() {
    let start = Mutex::new(started::<Stack>());
    let found = run_group(2, |group| {
        let device = Device::flex().autodiff();
        let start = start.lock().expect("not poisoned").clone();
        let settings = || FullyShard::new(&group).least_unit_bytes(0);
        let (mut sharded, mut model) = settings().wrap(start.clone())?;
        let mut optimizer = adamw();
        let mut ends = Vec::new();
        for interrupted in [false, true] {
            if interrupted {
                (sharded, model) = settings().wrap(start.clone())?;
                optimizer = adamw();
            }
            for step in 0..4 {
                if interrupted && step == 2 {
                    let record = sharded.materialize(model)?.into_record();
                    (sharded, model) = settings().wrap(start.clone().load_record(record))?;
                    let state = optimizer.to_record().into_bytes().expect("a record");
                    optimizer = adamw().from_bytes(state).expect("its own record");
                }
                let gradients = model.loss(step, &device).backward();
                let gradients = sharded.gradients(gradients, &model)?;
                model = optimizer.step(LR, model, gradients);
            }
            ends.push(bits(&model.clone().materialize()));
        }
        Ok(ends[0] == ends[1])
    });
    for found in found {
        assert!(found.expect("no fault"));
    }
}

#[test]
fn two_forward_passes_before_two_backward_passes() {
    let start = Mutex::new(started::<Stack>());
    let found = run_group(2, |group| {
        let device = Device::flex().autodiff();
        let start = start.lock().expect("not poisoned").clone();
        let settings = || FullyShard::new(&group).least_unit_bytes(0);
        let (one, model) = settings().wrap(start.clone())?;
        one.no_sync(|| model.loss(0, &device).backward());
        let gradients = one.gradients(model.loss(1, &device).backward(), &model)?;
        let expected = bits(&adamw().step(LR, model, gradients).materialize());
        let (two, model) = settings().wrap(start)?;
        let (first, second) = (model.loss(0, &device), model.loss(1, &device));
        two.no_sync(|| first.backward());
        let gradients = two.gradients(second.backward(), &model)?;
        Ok(bits(&adamw().step(LR, model, gradients).materialize()) == expected)
    });
    for found in found {
        assert!(found.expect("no fault"));
    }
}

/// A model that is one recurrent layer, and one unit.
#[derive(Module, Debug)]
struct Alone {
    lstm: Lstm,
}

impl Toy for Alone {
    fn init(device: &Device) -> Self {
        Self {
            lstm: LstmConfig::new(3, 5, true).init(device),
        }
    }

    fn loss(&self, item: usize, device: &Device) -> Tensor<1> {
        let (output, _) = self.lstm.forward(fill([2, 6, 3], item, device), None);
        output.square().mean()
    }
}

#[test]
fn a_recurrent_layer_alone() {
    crate::runs::check::<Alone>(adamw);
}

#[test]
fn groups_of_parameters_are_found_by_their_paths() {
    let optimizer = || {
        let slow = SgdConfig::new().build();
        let group = ParamGroup::from_path("twice.weight");
        AdamWConfig::new().init().with_group(group, slow, None)
    };
    crate::runs::check_with::<Partly>(optimizer, |group| {
        FullyShard::new(group).least_unit_bytes(0)
    });
}
