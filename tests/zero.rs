//! ZeRO stages 1 and 2: the same bits as plain data parallelism and as one rank, for models that know
//! nothing of it, with the optimizer's state divided.
#![warn(missing_docs)]

#[path = "zero/models.rs"]
mod models;
#[path = "fully_shard/stack.rs"]
mod stack;
#[path = "zero/wide.rs"]
mod wide;

use std::sync::Mutex;

use burn::module::ParamGroup;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdafactorConfig, AdamWConfig, GradientsParams, LambConfig, LionConfig, ModuleOptimizer,
    MuonConfig, RmsPropConfig, SgdConfig,
};
use burn::tensor::Device;
use burn_dist::data_parallel::{BucketSizes, ParameterTable, RankOrderAccumulator};
use burn_dist::{DistError, ProcessGroup, Result};
use burn_zero::{
    ShardableOptimizer, ShardedOptimizer, ShardedOptimizerConfig, StateBytes, ZeroStage,
};
use models::{Convolutional, Encoder, Partly, Recurrent, Tied, Toy};
use stack::{DEPTH, LAYER, Stack};
use tests::{parameter_bits as bits, run_group};
use wide::Wide;

const STEPS: usize = 6;
const LR: f64 = 1e-2;

/// One rank in the grouping of `n`.
fn reference<M: Toy>(start: &M, n: usize, mut optimizer: ModuleOptimizer) -> Vec<Vec<u8>> {
    let device = Device::flex().autodiff();
    let mut model = start.valid().train();
    for step in 0..STEPS {
        let mut sum = RankOrderAccumulator::new();
        for rank in 0..n {
            let loss = model.loss(step * n + rank, &device);
            sum.add(&model, GradientsParams::from_grads(loss.backward(), &model));
            sum.end_rank(&model);
        }
        let gradients = sum.mean(&model);
        model = optimizer.step(LR, model, gradients);
    }
    bits(&model)
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

fn train<M: Toy>(
    start: M,
    group: &ProcessGroup,
    optimizer: ShardableOptimizer,
    config: ShardedOptimizerConfig,
) -> Result<(M, ShardedOptimizer)> {
    let device = Device::flex().autodiff();
    let (n, rank) = (group.size(), group.index());
    let (mut sharded, mut model) = ShardedOptimizer::wrap_with(start, optimizer, group, config)?;
    for step in 0..STEPS {
        let loss = model.loss(step * n + rank, &device);
        model = sharded.step(LR, model, loss.backward())?;
    }
    Ok((model, sharded))
}

/// The sharded optimizer on 1 to 4 ranks, in small and large units, against one rank.
fn check<M: Toy + 'static>(
    plain: impl Fn() -> ModuleOptimizer,
    shardable: impl Fn() -> ShardableOptimizer + Send + Sync,
) {
    let device = Device::flex().autodiff();
    let start = M::init(&device);
    // Burn draws parameters when they are first read.
    ParameterTable::of(&start).expect("nothing is wrapped");
    for n in [1, 2, 3, 4] {
        let expected = reference(&start, n, plain());
        assert!(bits(&start) != expected, "nothing was learnt");
        for bytes in [0, 200, 1_000_000] {
            let shared = Mutex::new(start.clone());
            let found = run_group(n, |group| {
                let start = shared.lock().expect("not poisoned").clone();
                let (model, _) = train(start, &group, shardable(), units(bytes))?;
                Ok(bits(&model))
            });
            for found in found {
                let found = found.expect("no fault");
                assert!(found == expected, "{n} ranks, units of {bytes} bytes");
            }
        }
    }
}

fn adamw() -> AdamWConfig {
    AdamWConfig::new().with_weight_decay(0.1)
}

fn check_adamw<M: Toy + 'static>() {
    check::<M>(|| adamw().init(), || adamw().build().into());
}

#[test]
fn a_transformer_encoder() {
    check_adamw::<Encoder>();
}

#[test]
fn an_lstm() {
    check_adamw::<Recurrent>();
}

#[test]
fn a_convolutional_net_with_batch_norm() {
    check_adamw::<Convolutional>();
}

#[test]
fn tied_weights() {
    check_adamw::<Tied>();
}

#[test]
fn frozen_parts_layers_used_twice_and_never() {
    check_adamw::<Partly>();
}

#[test]
fn other_element_wise_optimizers() {
    let momentum = || MomentumConfig::new();
    let sgd = || SgdConfig::new().with_momentum(Some(momentum()));
    check::<Encoder>(|| sgd().init(), || sgd().build().into());
    let lion = LionConfig::new;
    check::<Partly>(|| lion().init(), || lion().build().into());
    let rms = RmsPropConfig::new;
    check::<Recurrent>(|| rms().init(), || rms().build().into());
}

#[test]
fn optimizers_that_look_at_whole_parameters() {
    check::<Encoder>(
        || LambConfig::new().init(),
        || LambConfig::new().init().into(),
    );
    let adafactor = AdafactorConfig::new;
    check::<Partly>(|| adafactor().init(), || adafactor().init().into());
    // Muon on matrices of the encoder's layers, AdamW elsewhere.
    let both = || {
        let matrices = ParamGroup::from_predicate("encoder.layers.*.linear_*.weight");
        adamw()
            .init()
            .with_group(matrices, MuonConfig::new().build(), None)
    };
    check::<Encoder>(both, || both().into());
}

#[test]
fn groups_of_parameters_are_found_by_their_paths() {
    let slow = || SgdConfig::new().build();
    let group = || ParamGroup::from_path("twice.weight");
    check::<Partly>(
        || adamw().init().with_group(group(), slow(), None),
        || ShardableOptimizer::from(adamw().build()).with_group(group(), slow()),
    );
}

/// Bytes of an optimizer's state as it is saved.
fn state_bytes(optimizer: &ModuleOptimizer) -> f64 {
    let bytes = optimizer.to_record().into_bytes();
    bytes.expect("a record").len() as f64
}

#[test]
fn each_rank_keeps_its_part_of_the_state() {
    let device = Device::flex().autodiff();
    let start = Wide::init(&device);
    let table = ParameterTable::of(&start).expect("nothing is wrapped");
    let all: usize = table.specs().iter().map(|spec| spec.num_elements()).sum();
    let optimizers: [fn() -> ShardableOptimizer; 2] =
        [|| adamw().build().into(), || adamw().init().into()];
    for (whole, optimizer) in optimizers.into_iter().enumerate() {
        for n in [2, 4] {
            let shared = Mutex::new(start.clone());
            let found = run_group(n, |group| {
                let start = shared.lock().expect("not poisoned").clone();
                let (_, sharded) = train(start, &group, optimizer(), units(1_000_000))?;
                let held = sharded.layout().held_by_each();
                Ok((
                    state_bytes(sharded.optimizer()),
                    sharded.num_elements(),
                    held,
                ))
            });
            let mut total = 0;
            for found in found {
                let (bytes, own, held) = found.expect("no fault");
                total += own;
                if whole == 0 {
                    let formula = all as f64 * StateBytes::ADAM_F32.optimizer / n as f64;
                    assert!(
                        (bytes - formula).abs() <= 0.01 * formula,
                        "{bytes} {formula}"
                    );
                    assert!(own <= held && held <= all.div_ceil(n) + 1, "{own} {held}");
                }
            }
            assert_eq!(total, all);
        }
    }
    let kept = StateBytes::ADAM_F32.per_rank(ZeroStage::OptimizerState, all as f64, 4);
    assert_eq!(kept, all as f64 * (8.0 + 8.0 / 4.0));
}

/// Gradients of stage 2 at once: the shards, a unit that travels, one that fills, and what a rank sends.
#[test]
fn whole_gradients_do_not_pile_up() {
    let device = Device::flex().autodiff();
    let start = Stack::init(&device);
    ParameterTable::of(&start).expect("nothing is wrapped");
    let shared = Mutex::new(start);
    let found = run_group(4, |group| {
        let start = shared.lock().expect("not poisoned").clone();
        let config = units(LAYER * size_of::<f32>());
        let (mut sharded, mut model) =
            ShardedOptimizer::wrap_with(start, adamw().build(), &group, config)?;
        let pool = group.communicator().pool().clone();
        let mut most = 0;
        for step in 0..4 {
            let loss = model.loss(step * 4 + group.index(), &device);
            let idle = pool.used_bytes();
            pool.mark_peak();
            let gradients = loss.backward();
            most = most.max(pool.peak_bytes() - idle);
            model = sharded.step(LR, model, gradients)?;
        }
        Ok((most, sharded.layout().num_units()))
    });
    for found in found {
        let (most, units) = found.expect("no fault");
        assert_eq!(units, DEPTH);
        let unit = LAYER * size_of::<f32>();
        assert!(most <= DEPTH * unit / 4 + 2 * unit + unit / 2, "{most}");
    }
}

#[test]
fn wrong_use_is_refused() {
    let device = Device::flex().autodiff();
    let start = Mutex::new(Partly::init(&device));
    let errors = run_group(2, |group| {
        let model = start.lock().expect("not poisoned").clone();
        let (mut sharded, wrapped) = ShardedOptimizer::wrap(model, adamw().build(), &group)?;
        let twice = ShardedOptimizer::wrap(wrapped.clone(), adamw().build(), &group);
        let twice = twice.map(drop).expect_err("wrapped before");
        // A model that was never wrapped has other parameters.
        let stranger = Partly::init(&Device::flex().autodiff());
        let loss = wrapped.loss(group.index(), &Device::flex().autodiff());
        let other = sharded.step(LR, stranger, loss.backward());
        Ok((twice, other.map(drop).expect_err("another model")))
    });
    for error in errors {
        let (twice, other) = error.expect("no fault of the group");
        assert!(matches!(twice, DistError::Config { .. }), "{twice}");
        assert!(twice.to_string().contains("already carries"), "{twice}");
        assert!(
            other.to_string().contains("the model has no parameter"),
            "{other}"
        );
    }
}
