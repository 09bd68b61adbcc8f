//! An embedding that is the head's weight too, on the first and on the last stage.

use burn::module::{Module, Param, ParamId};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Int, Tensor, TensorData};
use burn_dist::data_parallel::RankOrderAccumulator;
use burn_dist::mesh::{DeviceMesh, MeshAxis, ParallelDims};
use burn_dist::{DistError, Result, World, launch_threads};
use burn_pipeline::{
    Activation, BlockStage, PipelineBlock, PipelineLinks, PipelineRuntime, Schedule, TiedParameter,
    partition,
};
use burn_zero::{
    ModelParallel, ShardedOptimizer, ShardedOptimizerConfig, clip_grad_norm, clip_grad_norm_over,
};

use super::toy::fill;
use super::{device, options};

const V: usize = 11;
const D: usize = 6;
const STEPS: usize = 10;
const MICRO_BATCHES: usize = 4;
const MAX_NORM: f64 = 0.05;
const LR: f64 = 1e-2;

/// A part of a model.
#[derive(Module, Debug)]
enum Part {
    Embedding(Embedding),
    Middle(Linear),
    Head(Head),
}

/// Logits by an embedding's weight.
#[derive(Module, Debug)]
struct Head {
    /// `[V, D]`.
    weight: Param<Tensor<2>>,
}

/// The whole model on one device, with one parameter for both uses.
#[derive(Module, Debug)]
struct Tied {
    embedding: Embedding,
    middle: Vec<Linear>,
}

#[derive(Clone)]
struct Batch {
    tokens: Tensor<2, Int>,
    targets: Tensor<2, Int>,
}

fn batch(step: usize, number: usize) -> Batch {
    let tensor = |seed: usize| {
        let values = (0..8).map(|i| ((i + 3) * 7919 + seed * 104_729) % 1_000_003 % V);
        let values: Vec<i64> = values.map(|value| value as i64).collect();
        Tensor::from_data(TensorData::new(values, [2, 4]), &device())
    };
    let seed = 100 * step + number;
    Batch {
        tokens: tensor(2 * seed),
        targets: tensor(2 * seed + 1),
    }
}

fn embedding() -> Embedding {
    let mut embedding = EmbeddingConfig::new(V, D).init(&device());
    embedding.weight = fill([V, D], 1);
    embedding
}

fn middle(number: usize) -> Linear {
    let mut linear = LinearConfig::new(D, D).init(&device());
    linear.weight = fill([D, D], 10 + number);
    linear.bias = Some(fill([D], 20 + number));
    linear
}

fn through(linear: &Linear, x: Tensor<3>) -> Tensor<3> {
    x.clone() + linear.forward(x).tanh()
}

fn loss(weight: &Param<Tensor<2>>, x: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<1> {
    let [b, s, d] = x.dims();
    let logits = x.reshape([b * s, d]).matmul(weight.val().transpose());
    let loss = CrossEntropyLossConfig::new().init(&device());
    loss.forward(logits, targets.reshape([b * s]))
}

impl PipelineBlock for Part {
    type Batch = Batch;

    fn forward(&self, mut input: Vec<Activation>, batch: &Batch) -> Result<Vec<Activation>> {
        let mut x = || input.pop().expect("one").float::<3>();
        Ok(vec![match self {
            Self::Embedding(embedding) => embedding.forward(batch.tokens.clone()).into(),
            Self::Middle(linear) => through(linear, x()?).into(),
            Self::Head(head) => loss(&head.weight, x()?, batch.targets.clone()).into(),
        }])
    }
}

const MIDDLE: usize = 3;

fn parts() -> Vec<Part> {
    let head = Head {
        weight: fill([V, D], 1),
    };
    let mut parts = vec![Part::Embedding(embedding())];
    parts.extend((0..MIDDLE).map(|number| Part::Middle(middle(number))));
    parts.push(Part::Head(head));
    parts
}

type Stages = Vec<BlockStage<Part>>;

/// The identifier of this rank's copy.
fn copy(stages: &Stages) -> Option<ParamId> {
    let mut parts = stages.iter().flat_map(|stage| &stage.blocks);
    parts.find_map(|part| match part {
        Part::Embedding(embedding) => Some(embedding.weight.id),
        Part::Middle(_) => None,
        Part::Head(head) => Some(head.weight.id),
    })
}

/// Every value of a model, in its order.
fn values<M: Module>(model: &M) -> Vec<Vec<f32>> {
    let bits = tests::parameter_bits(model).into_iter();
    let floats = bits.map(|bytes| {
        let words = bytes.chunks_exact(4);
        words
            .map(|word| f32::from_le_bytes(word.try_into().expect("four bytes")))
            .collect()
    });
    floats.collect()
}

/// One device, one parameter: its values, and the norms.
fn alone(replicas: usize) -> (Vec<Vec<f32>>, Vec<f64>) {
    let mut model = Tied {
        embedding: embedding(),
        middle: (0..MIDDLE).map(middle).collect(),
    };
    let mut optimizer = AdamWConfig::new().init();
    let mut norms = Vec::new();
    for step in 0..STEPS {
        let mut sums = RankOrderAccumulator::new();
        for replica in 0..replicas {
            for number in 0..MICRO_BATCHES {
                let batch = batch(step, replica * MICRO_BATCHES + number);
                let mut x = model.embedding.forward(batch.tokens);
                for linear in &model.middle {
                    x = through(linear, x);
                }
                let loss = loss(&model.embedding.weight, x, batch.targets);
                sums.add(&model, GradientsParams::from_grads(loss.backward(), &model));
            }
            sums.end_rank(&model);
        }
        let (gradients, norm) = clip_grad_norm(sums.mean(&model), &model, MAX_NORM).expect("right");
        norms.push(norm);
        model = optimizer.step(LR, model, gradients);
    }
    (values(&model), norms)
}

/// A rank: its values, and the norms.
fn together(world: &World, dims: ParallelDims, zero: bool) -> Result<(Vec<Vec<f32>>, Vec<f64>)> {
    let mesh = DeviceMesh::new(dims, world.world_size())?;
    let dp = world.axis_group(&mesh, &[MeshAxis::DpShard])?;
    let pp = world.axis_group(&mesh, &[MeshAxis::Pp])?;
    let plan = Schedule::OneFOneB.plan(pp.size(), MICRO_BATCHES)?;
    let links = PipelineLinks::new(world, &mesh)?;
    let mut runtime = PipelineRuntime::new(&plan, links, &device())?;
    let cut = partition(&[1.0; MIDDLE + 2], pp.size())?;
    let mut stages: Stages =
        BlockStage::deal(parts().into_iter().map(Ok), &cut, &runtime.stages())?;
    let ends = [pp.ranks()[0], pp.ranks()[pp.size() - 1]];
    let tied = match copy(&stages) {
        Some(id) => Some(TiedParameter::new(&world.group("tied", &ends)?, id)?),
        None => None,
    };
    let mut model_parallel = ModelParallel::new().over(MeshAxis::Pp, &pp);
    if let Some(tied) = tied.as_ref().filter(|tied| !tied.counts()) {
        model_parallel = model_parallel.counted_elsewhere(tied.id());
    }
    let mut optimizer = AdamWConfig::new().init();
    let mut sharded = None;
    if zero {
        let config = ShardedOptimizerConfig {
            average_micro_steps: true,
            max_grad_norm: Some(MAX_NORM),
            model_parallel: model_parallel.clone(),
            ..ShardedOptimizerConfig::default()
        };
        let (wrapped, model) =
            ShardedOptimizer::wrap_with(stages, AdamWConfig::new().build(), &dp, config)?;
        sharded = Some(wrapped);
        stages = model;
    }
    let mut norms = Vec::new();
    for step in 0..STEPS {
        let batches: Vec<Batch> = (0..MICRO_BATCHES)
            .map(|number| batch(step, dp.index() * MICRO_BATCHES + number))
            .collect();
        let plain = stages.clone().materialize();
        let done = runtime.step(&plain, &batches, &[1.0; MICRO_BATCHES])?;
        let mean = |gradients, model: &Stages| {
            burn_dist::data_parallel::mean_gradients(gradients, MICRO_BATCHES, model)
        };
        let mut gradients = done.all_gradients(&plain);
        if let Some(tied) = &tied {
            gradients = tied.add(gradients, &plain)?;
        }
        stages = match &mut sharded {
            Some(sharded) => sharded.step_given(LR, stages, gradients, MICRO_BATCHES)?,
            None => {
                let gradients = mean(gradients, &plain);
                let (gradients, norm) =
                    clip_grad_norm_over(gradients, &plain, MAX_NORM, &model_parallel)?;
                norms.push(norm);
                optimizer.step(LR, stages, gradients)
            }
        };
        if let Some(tied) = &tied {
            tied.check(&stages)?;
        }
    }
    Ok((values(&stages.materialize()), norms))
}

fn assert_close(got: &[Vec<f32>], right: &[Vec<f32>], what: &str) {
    assert_eq!(got.len(), right.len(), "{what}");
    for (got, right) in got.iter().flatten().zip(right.iter().flatten()) {
        assert!((got - right).abs() < 1e-5, "{what}: {got} {right}");
    }
}

#[test]
fn copies_stay_equal_and_are_one_parameter_within_rounding() {
    for (pp, dp, zero) in [(2, 1, false), (4, 1, false), (2, 1, true), (2, 2, true)] {
        let what = format!("pp {pp}, dp {dp}, zero {zero}");
        let dims = ParallelDims {
            pp,
            dp_shard: dp,
            ..ParallelDims::default()
        };
        let (right, norms) = alone(dp);
        let ranks = launch_threads(pp * dp, options(), |world| together(&world, dims, zero));
        let ranks = ranks.expect("no fault");
        // The first rank of each stage.
        let mut all: Vec<Vec<f32>> = Vec::new();
        for rank in ranks.iter().step_by(dp) {
            all.extend(rank.0.clone());
        }
        let head = all.pop().expect("the last stage's");
        assert_eq!(head, all[0], "{what}: copies");
        assert_close(&all, &right, &what);
        for rank in ranks.iter().filter(|rank| !rank.1.is_empty()) {
            for (got, right) in rank.1.iter().zip(&norms) {
                assert!((got - right).abs() < 1e-6 * right, "{what}: {got} {right}");
            }
        }
    }
}

#[test]
fn copies_that_part_are_named_and_can_be_shared() {
    let results = launch_threads(2, options(), |world| {
        let own = Head {
            weight: fill([V, D], world.rank()),
        };
        let group = world.group("tied", &[0, 1])?;
        let tied = TiedParameter::new(&group, own.weight.id)?;
        let error = tied.check(&own).expect_err("they differ");
        assert!(matches!(error, DistError::Replica { .. }), "{error}");
        assert!(error.to_string().contains("[11, 6]"), "{error}");
        let same = tied.share(own)?;
        tied.check(&same)?;
        let narrow = Head {
            weight: fill([V, D - world.rank()], 1),
        };
        let tied = TiedParameter::new(&group, narrow.weight.id)?;
        let error = tied.share(narrow).expect_err("of unequal shapes");
        assert!(error.to_string().contains("[11, 5]"), "{error}");
        let stranger = TiedParameter::new(&group, ParamId::new())?;
        let error = stranger.add(GradientsParams::new(), &same);
        assert!(
            error
                .err()
                .is_some_and(|error| error.to_string().contains("no parameter"))
        );
        let three = TiedParameter::new(&world.group("alone", &[world.rank()])?, same.weight.id);
        assert!(three.is_err());
        Ok(values(&same))
    });
    let results = results.expect("no fault");
    assert_eq!(results[0], results[1]);
}

#[test]
fn a_cut_of_another_model_is_refused() {
    let deal = |cut: &[std::ops::Range<usize>], own: &[usize]| {
        BlockStage::deal(parts().into_iter().map(Ok), cut, own)
    };
    assert_eq!(deal(&[0..2, 2..5], &[1]).expect("right")[0].blocks.len(), 3);
    for (cut, own) in [(&[0..2, 2..4][..], 0), (&[0..3, 3..6], 1), (&[0..5], 1)] {
        assert!(deal(cut, &[own]).is_err(), "{cut:?} {own}");
    }
}
