//! Pipelines of replicas: gradients that a pipeline added up go through data parallelism and ZeRO-1.

use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsParams};
use burn_dist::data_parallel::{DataParallel, DataParallelConfig, RankOrderAccumulator};
use burn_dist::mesh::{DeviceMesh, MeshAxis, ParallelDims};
use burn_dist::random::RandomStream;
use burn_dist::{Result, World, launch_threads};
use burn_pipeline::{PipelineLinks, PipelineRuntime, Schedule};
use burn_zero::{ModelParallel, ShardedOptimizer, ShardedOptimizerConfig, clip_grad_norm};
use tests::parameter_bits;

use super::toy::{Item, Kind, Toy};
use super::{STEPS, device, options};

const BLOCKS: usize = 4;
const MICRO_BATCHES: usize = 3;
const MAX_NORM: f64 = 0.05;

fn batch(step: usize, replica: usize, micro_batch: usize) -> Item {
    let first = (replica * MICRO_BATCHES + micro_batch) * 2;
    Item::of(step, first..first + 2)
}

/// One rank in the grouping of two replicas.
fn alone(clip: bool) -> Vec<Vec<u8>> {
    let stream = RandomStream::new(3);
    let mut model = Toy::new(Kind::Mlp, 0..BLOCKS, BLOCKS, 0.0, &stream);
    let mut optimizer = AdamWConfig::new().init();
    for step in 0..STEPS {
        let mut sums = RankOrderAccumulator::new();
        for replica in 0..2 {
            for micro_batch in 0..MICRO_BATCHES {
                let loss = model.whole_loss(step, micro_batch, &batch(step, replica, micro_batch));
                sums.add(&model, model.take_all(loss.backward()));
            }
            sums.end_rank(&model);
        }
        let mut gradients = sums.mean(&model);
        if clip {
            (gradients, _) = clip_grad_norm(gradients, &model, MAX_NORM).expect("right");
        }
        model = optimizer.step(1e-2, model.clone(), gradients);
    }
    parameter_bits(&model)
}

fn together(world: &World, zero: bool, clip: bool) -> Result<Vec<Vec<u8>>> {
    let dims = ParallelDims {
        pp: 2,
        dp_shard: 2,
        ..ParallelDims::default()
    };
    let mesh = DeviceMesh::new(dims, 4)?;
    let (dp, pp) = (
        world.axis_group(&mesh, &[MeshAxis::DpShard])?,
        world.axis_group(&mesh, &[MeshAxis::Pp])?,
    );
    let plan = Schedule::OneFOneB.plan(2, MICRO_BATCHES)?;
    let links = PipelineLinks::new(world, &mesh)?;
    let mut runtime = PipelineRuntime::new(&plan, links, &device())?;
    let stream = RandomStream::new(3);
    let first = runtime.links().index() * 2;
    let stage = Toy::new(Kind::Mlp, first..first + 2, BLOCKS, 0.0, &stream);
    let mut pass = |model: &Toy, step: usize| -> Result<GradientsParams> {
        let batches: Vec<Item> = (0..MICRO_BATCHES)
            .map(|micro_batch| batch(step, dp.index(), micro_batch))
            .collect();
        // The pipeline sees the parameters as they are, without hooks.
        let stages = [model.clone().materialize()];
        let done = runtime.step(&stages, &batches, &[1.0; MICRO_BATCHES])?;
        Ok(done.all_gradients(&stages))
    };
    if zero {
        let config = ShardedOptimizerConfig {
            average_micro_steps: true,
            max_grad_norm: clip.then_some(MAX_NORM),
            model_parallel: ModelParallel::new().over(MeshAxis::Pp, &pp),
            ..ShardedOptimizerConfig::default()
        };
        let optimizer = AdamWConfig::new().build();
        let (mut sharded, mut model) = ShardedOptimizer::wrap_with(stage, optimizer, &dp, config)?;
        for step in 0..STEPS {
            let gradients = pass(&model, step)?;
            model = sharded.step_given(1e-2, model, gradients, MICRO_BATCHES)?;
        }
        return Ok(parameter_bits(&model.materialize()));
    }
    let config = DataParallelConfig {
        average_micro_steps: true,
        ..DataParallelConfig::default()
    };
    let (parallel, mut model) = DataParallel::wrap_with(stage, &dp, config)?;
    let mut optimizer = AdamWConfig::new().init();
    for step in 0..STEPS {
        let gradients = pass(&model, step)?;
        parallel.deliver(gradients, MICRO_BATCHES, &model)?;
        let gradients = parallel.sync_without_input(&model)?;
        model = optimizer.step(1e-2, model, gradients);
    }
    assert!(parallel.deliver(GradientsParams::new(), 0, &model).is_err());
    Ok(parameter_bits(&model.materialize()))
}

#[test]
fn two_replicas_of_two_stages_are_one_rank_bit_for_bit() {
    for (zero, clip) in [(false, false), (true, false), (true, true)] {
        let one = alone(clip);
        let results = launch_threads(4, options(), |world| together(&world, zero, clip));
        let results = results.expect("no fault");
        // Ranks 0 and 1 are replicas of the first stage, 2 and 3 of the second.
        assert!(
            results[0] == results[1] && results[2] == results[3],
            "zero {zero}"
        );
        let stages = [&results[0][..], &results[2][..]].concat();
        assert!(stages == one, "zero {zero}, clip {clip}");
    }
}
