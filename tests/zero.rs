//! ZeRO stages 1 and 2: the same bits as plain data parallelism and as one rank, for models that know
//! nothing of it, with the optimizer's state divided.
#![warn(missing_docs)]

use std::sync::Mutex;

use burn::module::{Module, ModuleVisitor, Param, ParamGroup};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{
    BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, Linear, LinearConfig, Lstm, LstmConfig,
};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdafactorConfig, AdamWConfig, GradientsParams, LambConfig, LionConfig, ModuleOptimizer,
    MuonConfig, RmsPropConfig, SgdConfig,
};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_dist::data_parallel::{BucketSizes, ParameterTable, RankOrderAccumulator};
use burn_dist::{DistError, ProcessGroup, Result};
use burn_zero::{
    ShardableOptimizer, ShardedOptimizer, ShardedOptimizerConfig, StateBytes, ZeroStage,
};
use tests::run_group;

/// A model with a loss on numbered items.
trait Toy: Module {
    fn init(device: &Device) -> Self;
    fn loss(&self, item: usize, device: &Device) -> Tensor<1>;
}

fn values(len: usize, seed: usize) -> Vec<f32> {
    (0..len)
        .map(|i| (((i + 1) * (seed + 3) * 2_654_435_761) % 1000) as f32 / 1000.0 - 0.5)
        .collect()
}

fn fill<const D: usize>(shape: [usize; D], seed: usize, device: &Device) -> Tensor<D> {
    let values = values(shape.iter().product(), seed);
    Tensor::from_data(TensorData::new(values, shape), device)
}

#[derive(Module, Debug)]
struct Encoder {
    encoder: TransformerEncoder,
}

impl Toy for Encoder {
    fn init(device: &Device) -> Self {
        let config = TransformerEncoderConfig::new(8, 20, 2, 2).with_dropout(0.0);
        Self {
            encoder: config.init(device),
        }
    }

    fn loss(&self, item: usize, device: &Device) -> Tensor<1> {
        let input = TransformerEncoderInput::new(fill([2, 5, 8], item, device));
        let output = self.encoder.forward(input);
        (output - fill([2, 5, 8], item + 500, device))
            .square()
            .mean()
    }
}

#[derive(Module, Debug)]
struct Recurrent {
    lstm: Lstm,
    head: Linear,
}

impl Toy for Recurrent {
    fn init(device: &Device) -> Self {
        Self {
            lstm: LstmConfig::new(3, 5, true).init(device),
            head: LinearConfig::new(5, 1).init(device),
        }
    }

    fn loss(&self, item: usize, device: &Device) -> Tensor<1> {
        let (output, _) = self.lstm.forward(fill([2, 6, 3], item, device), None);
        self.head.forward(output).square().mean()
    }
}

#[derive(Module, Debug)]
struct Convolutional {
    conv: Conv2d,
    norm: BatchNorm,
    head: Linear,
}

impl Toy for Convolutional {
    fn init(device: &Device) -> Self {
        Self {
            conv: Conv2dConfig::new([1, 3], [3, 3]).init(device),
            norm: BatchNormConfig::new(3).init(device),
            head: LinearConfig::new(3 * 16, 2).init(device),
        }
    }

    fn loss(&self, item: usize, device: &Device) -> Tensor<1> {
        let x = self.conv.forward(fill([4, 1, 6, 6], item, device));
        let x = relu(self.norm.forward(x));
        self.head.forward(x.reshape([4, 3 * 16])).square().mean()
    }
}

/// One table reads words and scores them.
#[derive(Module, Debug)]
struct Tied {
    words: Embedding,
    middle: Linear,
}

impl Toy for Tied {
    fn init(device: &Device) -> Self {
        Self {
            words: EmbeddingConfig::new(11, 6).init(device),
            middle: LinearConfig::new(6, 6).init(device),
        }
    }

    fn loss(&self, item: usize, device: &Device) -> Tensor<1> {
        let tokens: Vec<i32> = (0..6).map(|i| ((item * 7 + i * 5) % 11) as i32).collect();
        let tokens = Tensor::<1, Int>::from_data(TensorData::new(tokens, [6]), device);
        let x = self.words.forward(tokens.reshape([2, 3]));
        let x = relu(self.middle.forward(x)).reshape([6, 6]);
        let scores = self.words.weight.val().transpose();
        x.matmul(scores).square().mean()
    }
}

/// A part that is not trained, a layer that is used twice, and one that no rank uses.
#[derive(Module, Debug)]
struct Partly {
    frozen: Linear,
    twice: Linear,
    idle: Linear,
    tiny: Linear,
}

impl Toy for Partly {
    fn init(device: &Device) -> Self {
        Self {
            frozen: LinearConfig::new(4, 4).init(device).no_grad(),
            twice: LinearConfig::new(4, 4).init(device),
            idle: LinearConfig::new(3, 2).init(device),
            tiny: LinearConfig::new(4, 1).init(device),
        }
    }

    fn loss(&self, item: usize, device: &Device) -> Tensor<1> {
        let x = relu(self.frozen.forward(fill([3, 4], item, device)));
        let x = self.twice.forward(relu(self.twice.forward(x)));
        self.tiny.forward(x).square().mean()
    }
}

/// The bits of all trained parameters, in their order.
fn bits<M: Module>(model: &M) -> Vec<Vec<u8>> {
    struct Bits(Vec<Vec<u8>>);
    impl ModuleVisitor for Bits {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let base = param.base();
            if base.is_require_grad() {
                self.0.push(base.inner().into_data().as_bytes().to_vec());
            }
        }
    }
    let mut bits = Bits(Vec::new());
    model.visit(&mut bits);
    bits.0
}

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
    sharded
        .data_parallel()
        .check_replicas(&model)
        .or_else(|error| {
            // Running states differ by nature.
            match error.to_string().contains("running") {
                true => Ok(()),
                false => Err(error),
            }
        })?;
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

/// Large enough that what a record says beside its numbers does not count.
#[derive(Module, Debug)]
struct Wide {
    first: Linear,
    second: Linear,
}

impl Toy for Wide {
    fn init(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(150, 301).init(device),
            second: LinearConfig::new(301, 299).init(device),
        }
    }

    fn loss(&self, item: usize, device: &Device) -> Tensor<1> {
        let x = relu(self.first.forward(fill([2, 150], item, device)));
        self.second.forward(x).square().mean()
    }
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
