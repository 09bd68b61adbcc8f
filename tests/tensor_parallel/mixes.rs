//! Split layers with data parallelism and ZeRO on a mesh: the dense model on one rank that accumulates.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_dist::data_parallel::{DataParallel, RankOrderAccumulator};
use burn_dist::mesh::{DeviceMesh, MeshAxis, ParallelDims};
use burn_dist::tensor_parallel::{
    ColumnParallelLinear, CrossEntropyOptions, ParallelEncoder, TensorParallel,
    VocabParallelEmbedding, vocab_parallel_cross_entropy,
};
use burn_dist::{ProcessGroup, Result, World, WorldOptions, launch_threads};
use burn_zero::{
    FullyShard, ModelParallel, ShardedOptimizer, ShardedOptimizerConfig, clip_grad_norm,
    clip_grad_norm_over,
};
use tests::parameter_bits;

use super::{STEPS, cast, relative, settled, values};

const VOCABULARY: usize = 7;
const MAX_NORM: f64 = 0.3;
/// The gradient of a key's bias is zero but for rounding, which AdamW makes steps of: small ones.
const LR: f64 = 1e-3;

fn device() -> Device {
    Device::flex().autodiff()
}

#[derive(Module, Debug)]
struct Dense {
    tokens: Embedding,
    encoder: TransformerEncoder,
    head: Linear,
}

#[derive(Module, Debug)]
struct Split {
    tokens: VocabParallelEmbedding,
    encoder: ParallelEncoder,
    head: ColumnParallelLinear,
}

impl Dense {
    fn init() -> Self {
        Self {
            tokens: EmbeddingConfig::new(VOCABULARY, 8).init(&device()),
            encoder: TransformerEncoderConfig::new(8, 12, 2, 2)
                .with_dropout(0.0)
                .with_norm_first(true)
                .init(&device()),
            head: LinearConfig::new(8, VOCABULARY).init(&device()),
        }
    }

    fn loss(&self, item: usize) -> Tensor<1> {
        let x = self.tokens.forward(tokens(item));
        let x = self.encoder.forward(TransformerEncoderInput::new(x));
        let logits = self.head.forward(x).reshape([8, VOCABULARY]);
        let loss = CrossEntropyLossConfig::new().init(&device());
        loss.forward(logits, tokens(item + 1).reshape([8]))
    }
}

impl Split {
    /// Whole activations outside of the encoder.
    fn of(dense: &Dense, parallel: &TensorParallel) -> Result<Self> {
        let whole = parallel.clone().sequence_parallel(false);
        Ok(Self {
            tokens: VocabParallelEmbedding::from_dense(&dense.tokens, &whole)?,
            encoder: ParallelEncoder::from_dense(&dense.encoder, parallel)?,
            head: ColumnParallelLinear::from_dense_vocabulary(&dense.head, &whole)?,
        })
    }

    fn to_dense(&self) -> Result<Dense> {
        Ok(Dense {
            tokens: self.tokens.to_dense()?,
            encoder: self.encoder.to_dense()?,
            head: self.head.to_dense()?,
        })
    }

    fn loss(&self, item: usize) -> Result<Tensor<1>> {
        let x = self
            .encoder
            .forward(self.tokens.forward(tokens(item))?, None, None)?;
        let logits = self.head.forward(x)?;
        let [batch, seq, columns] = logits.dims();
        vocab_parallel_cross_entropy(
            logits.reshape([batch * seq, columns]),
            tokens(item + 1).reshape([8]),
            &CrossEntropyOptions::new(VOCABULARY),
            self.head.parallel().group(),
        )
    }
}

/// `[2, 4]` tokens of a numbered item.
fn tokens(item: usize) -> Tensor<2, Int> {
    let values: Vec<i64> = (0..8)
        .map(|i| ((i * 5 + item * 3 + i * item) % VOCABULARY) as i64)
        .collect();
    Tensor::from_data(TensorData::new(values, [2, 4]), &device())
}

/// Losses and norms of each step, and the dense model at the end.
struct Run {
    losses: Vec<f64>,
    norms: Vec<f64>,
    model: Dense,
}

fn number(loss: &Tensor<1>) -> f64 {
    loss.clone().into_data().iter::<f64>().next().expect("one")
}

/// One rank, in the grouping of `replicas`.
fn alone(mut model: Dense, replicas: usize) -> Run {
    let mut optimizer = AdamWConfig::new().init();
    let (mut losses, mut norms) = (Vec::new(), Vec::new());
    for step in 0..STEPS {
        let mut sums = RankOrderAccumulator::new();
        let mut total = 0.0;
        for replica in 0..replicas {
            let loss = model.loss(step * replicas + replica);
            total += number(&loss);
            sums.add(&model, GradientsParams::from_grads(loss.backward(), &model));
            sums.end_rank(&model);
        }
        let (gradients, norm) = clip_grad_norm(sums.mean(&model), &model, MAX_NORM).expect("right");
        model = optimizer.step(LR, model, gradients);
        losses.push(total / replicas as f64);
        norms.push(norm);
    }
    Run {
        losses,
        norms,
        model,
    }
}

#[derive(Debug, Clone, Copy)]
enum Strategy {
    DataParallel,
    /// Stages 1 and 2.
    Sharded,
    /// Stage 3.
    Fully,
}

fn together(dense: &Dense, strategy: Strategy, sequence: bool, world: &World) -> Result<Run> {
    let dims = ParallelDims {
        dp_shard: ParallelDims::REST,
        tp: 2,
        ..ParallelDims::default()
    };
    let mesh = DeviceMesh::new(dims, world.world_size())?;
    let tp = world.axis_group(&mesh, &[MeshAxis::Tp])?;
    let dp = world.axis_group(&mesh, &[MeshAxis::DpShard])?;
    let parts = ModelParallel::new().over(MeshAxis::Tp, &tp);
    let parallel = TensorParallel::new(&tp)
        .sequence_parallel(sequence)
        .regather(sequence);
    let model = Split::of(dense, &parallel)?;
    let item = |step: usize| step * dp.size() + dp.index();
    let (mut losses, mut norms) = (Vec::new(), Vec::new());
    let mut finish = |loss: &Tensor<1>, norm: f64| -> Result<()> {
        let all = dp.all_gather_values(vec![number(loss)])?;
        losses.push(all.iter().map(|loss| loss[0]).sum::<f64>() / all.len() as f64);
        norms.push(norm);
        Ok(())
    };
    let model = match strategy {
        Strategy::DataParallel => {
            let (data, mut model) = DataParallel::wrap(model, &dp)?;
            let mut optimizer = AdamWConfig::new().init();
            for step in 0..STEPS {
                let loss = model.loss(item(step))?;
                let gradients = data.sync(loss.backward(), &model)?;
                let (gradients, norm) = clip_grad_norm_over(gradients, &model, MAX_NORM, &parts)?;
                model = optimizer.step(LR, model, gradients);
                finish(&loss, norm)?;
            }
            data.check_replicas(&model)?;
            model.materialize()
        }
        Strategy::Sharded => {
            let config = ShardedOptimizerConfig {
                max_grad_norm: Some(MAX_NORM),
                model_parallel: parts,
                ..ShardedOptimizerConfig::default()
            };
            let optimizer = AdamWConfig::new().build();
            let (mut sharded, mut model) =
                ShardedOptimizer::wrap_with(model, optimizer, &dp, config)?;
            for step in 0..STEPS {
                let loss = model.loss(item(step))?;
                model = sharded.step(LR, model, loss.backward())?;
                finish(&loss, sharded.last_grad_norm().expect("clipped"))?;
            }
            model.materialize()
        }
        Strategy::Fully => {
            let (sharded, mut model) = FullyShard::new(&dp).model_parallel(&parts).wrap(model)?;
            let mut optimizer = AdamWConfig::new().init();
            for step in 0..STEPS {
                let loss = model.loss(item(step))?;
                let gradients = sharded.gradients(loss.backward(), &model)?;
                let (gradients, norm) = sharded.clip_grad_norm(gradients, &model, MAX_NORM)?;
                model = optimizer.step(LR, model, gradients);
                finish(&loss, norm)?;
            }
            sharded.materialize(model)?
        }
    };
    Ok(Run {
        losses,
        norms,
        model: model.to_dense()?,
    })
}

fn worlds<T: Send>(ranks: usize, f: impl Fn(&World) -> Result<T> + Send + Sync) -> Vec<T> {
    let options = WorldOptions {
        step_timeout: std::time::Duration::from_secs(20),
        ..WorldOptions::default()
    };
    launch_threads(ranks, options, |world| f(&world)).expect("no fault")
}

#[test]
fn on_a_mesh_with_every_strategy_the_dense_model_on_one_rank() {
    for (dtype, bound) in [(DType::F64, 1e-12), (DType::F32, 1e-5)] {
        let dense = cast(&settled(&Dense::init()), dtype);
        for replicas in [1, 2] {
            let one = alone(cast(&dense, dtype), replicas);
            let mut bits = Vec::new();
            for strategy in [Strategy::DataParallel, Strategy::Sharded, Strategy::Fully] {
                for sequence in [false, true] {
                    let what = format!("{replicas} x 2, {strategy:?}, {sequence}, {dtype:?}");
                    let runs = worlds(2 * replicas, |world| {
                        together(&cast(&dense, dtype), strategy, sequence, world)
                    });
                    for run in &runs {
                        assert!(
                            relative(&run.losses, &one.losses) <= bound,
                            "{what}: losses"
                        );
                        assert!(relative(&run.norms, &one.norms) <= bound, "{what}: norms");
                        assert_eq!(run.norms, runs[0].norms, "{what}: one norm on all ranks");
                        let (got, expected) = (values(&run.model), values(&one.model));
                        for ((path, got), (_, expected)) in got.iter().zip(&expected) {
                            let error = relative(got, expected);
                            assert!(error <= bound, "{what}: {path} differs by {error:e}");
                        }
                    }
                    bits.push((sequence, parameter_bits(&runs[0].model), what));
                }
            }
            // Strategies differ in nothing.
            for (sequence, model, what) in &bits {
                let first = bits.iter().find(|other| other.0 == *sequence).expect("one");
                assert!(*model == first.1, "{what} has other bits than {}", first.2);
            }
        }
    }
}

/// A split model and the group of its layers, of two.
fn split_of_two<T: Send>(f: impl Fn(Split, ProcessGroup) -> Result<T> + Send + Sync) -> Vec<T> {
    let dense = Dense::init();
    worlds(2, |world| {
        let group = world.whole()?;
        f(
            Split::of(&cast(&dense, DType::F32), &TensorParallel::new(&group))?,
            group,
        )
    })
}

#[test]
fn a_group_whose_members_hold_other_parts_is_refused() {
    split_of_two(|model, group| {
        let refusals = [
            DataParallel::wrap(model.clone(), &group).map(drop),
            FullyShard::new(&group).wrap(model.clone()).map(drop),
            ShardedOptimizer::wrap(model, AdamWConfig::new().build(), &group).map(drop),
        ];
        for refusal in refusals {
            let text = refusal.expect_err("refused").to_string();
            let named = [
                "tokens.weight",
                "shard(0) over tp [0, 1]",
                "another axis than tp",
            ];
            assert!(named.iter().all(|part| text.contains(part)), "{text}");
        }
        group.barrier()
    });
}

#[test]
fn overlap_changes_no_bit_and_what_is_whole_stays_equal_on_all_ranks() {
    let dense = settled(&Dense::init());
    for sequence in [false, true] {
        let run = |overlap: bool| {
            worlds(2, |world| {
                let group = world.whole()?;
                let parallel = TensorParallel::new(&group)
                    .sequence_parallel(sequence)
                    .regather(true)
                    .overlap(overlap);
                let mut model = Split::of(&cast(&dense, DType::F32), &parallel)?;
                let mut optimizer = AdamWConfig::new().init();
                for step in 0..STEPS {
                    let loss = model.loss(step)?;
                    let gradients = GradientsParams::from_grads(loss.backward(), &model);
                    model = optimizer.step(LR, model, gradients);
                }
                let whole = model.encoder.layers.iter().flat_map(|layer| {
                    let norms = [&layer.norm_1.layer, &layer.norm_2.layer];
                    let mut bits: Vec<_> = norms.into_iter().flat_map(parameter_bits).collect();
                    let biases = [&layer.mha.output.bias, &layer.pwff.linear_outer.bias];
                    bits.extend(biases.into_iter().flat_map(parameter_bits));
                    bits
                });
                Ok((parameter_bits(&model), whole.collect::<Vec<_>>()))
            })
        };
        let (beside, apart) = (run(true), run(false));
        assert!(beside == apart, "sequence {sequence}");
        assert_eq!(beside[0].1.len(), 2 * (4 + 2));
        assert!(beside[0].1 == beside[1].1, "sequence {sequence}");
    }
}

#[test]
fn a_group_named_twice_is_refused() {
    split_of_two(|model, group| {
        for axis in [MeshAxis::Tp, MeshAxis::Pp] {
            let gradients = GradientsParams::from_grads(model.loss(0)?.backward(), &model);
            let parts = ModelParallel::new()
                .over(MeshAxis::Tp, &group)
                .over(axis, &group);
            let refusal = clip_grad_norm_over(gradients, &model, 1.0, &parts).map(|_| ());
            let text = refusal.expect_err("refused").to_string();
            assert!(text.contains("would count twice"), "{text}");
        }
        group.barrier()
    });
}

#[test]
fn a_norm_over_one_part_is_refused() {
    split_of_two(|model, group| {
        let gradients = GradientsParams::from_grads(model.loss(0)?.backward(), &model);
        let refusal = clip_grad_norm(gradients, &model, 1.0).map(|_| ());
        let text = refusal.expect_err("refused").to_string();
        assert!(
            text.contains("tokens.weight") && text.contains("MeshAxis::Tp"),
            "{text}"
        );
        let alone = ProcessGroup::clone(&group);
        let (sharded, model) = {
            // Data parallelism of one: nothing else is wrong.
            let hub = burn_dist::communicator::InProcessHub::new();
            let members =
                burn_dist::communicator::Members::new("dp", &[alone.rank()], alone.rank());
            let options = burn_dist::communicator::CommunicatorOptions::default();
            let dp = hub.connect(&members?, options, None);
            FullyShard::new(&ProcessGroup::new(std::sync::Arc::new(dp))).wrap(model)?
        };
        let gradients = sharded.gradients(model.loss(0)?.backward(), &model)?;
        let refusal = sharded.clip_grad_norm(gradients, &model, 1.0).map(|_| ());
        assert!(
            refusal
                .expect_err("refused")
                .to_string()
                .contains("ModelParallel")
        );
        group.barrier()
    });
}
