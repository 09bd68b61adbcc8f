//! Pipelines give the numbers of one rank that accumulates the same micro-batches, with every schedule.

#[path = "pipeline/deferred.rs"]
mod deferred;
#[path = "pipeline/faults.rs"]
mod faults;
#[path = "pipeline/pictures.rs"]
mod pictures;
#[path = "pipeline/replicas.rs"]
mod replicas;
#[path = "pipeline/tied.rs"]
mod tied;
#[path = "pipeline/toy.rs"]
mod toy;

use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::Device;
use burn_dist::data_parallel::RankOrderAccumulator;
use burn_dist::random::RandomStream;
use burn_dist::{Result, World, WorldOptions, launch_threads};
use burn_pipeline::{
    MicroBatches, PipelineLinks, PipelineRuntime, Recompute, Schedule, SchedulePlan, StageCosts,
    measure_blocks, partition, simulate,
};
use tests::parameter_bits;
use toy::{Item, Kind, Toy};

const STEPS: usize = 6;

fn device() -> Device {
    Device::flex().autodiff()
}

/// Losses of each step's micro-batches, as bits, and the parameters of all blocks.
#[derive(Debug, PartialEq)]
struct Outcome {
    losses: Vec<Vec<u64>>,
    parameters: Vec<Vec<u8>>,
}

/// What is trained, and how a batch is cut.
#[derive(Debug, Clone, Copy)]
struct Job {
    kind: Kind,
    blocks: usize,
    items: usize,
    micro_batches: usize,
    dropout: f64,
}

impl Job {
    fn new(micro_batches: usize) -> Self {
        Self {
            kind: Kind::Mlp,
            blocks: 10,
            items: 2 * micro_batches,
            micro_batches,
            dropout: 0.0,
        }
    }

    fn batches(self, step: usize) -> (Vec<Item>, Vec<f64>) {
        let cut = MicroBatches::new(self.items, self.micro_batches).expect("right");
        let items = cut.ranges().iter();
        let batches = items.map(|range| Item::of(step, range.clone())).collect();
        (batches, cut.weights())
    }
}

/// One rank that runs the whole model and adds up.
fn alone(job: Job) -> Outcome {
    let stream = RandomStream::new(3);
    let mut model = Toy::new(job.kind, 0..job.blocks, job.blocks, job.dropout, &stream);
    let mut optimizer = AdamWConfig::new().init();
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let (batches, weights) = job.batches(step);
        let mut sums = RankOrderAccumulator::new();
        let mut of_step = Vec::new();
        for (number, (batch, weight)) in batches.iter().zip(weights).enumerate() {
            let loss = model.whole_loss(step, number, batch);
            let value = loss.clone().into_data().iter::<f64>().next().expect("one");
            of_step.push(value.to_bits());
            let loss = if weight == 1.0 {
                loss
            } else {
                loss.mul_scalar(weight)
            };
            let gradients = loss.backward();
            sums.add(&model, model.take_all(gradients));
        }
        sums.end_rank(&model);
        model = optimizer.step(1e-2, model.clone(), sums.mean(&model));
        losses.push(of_step);
    }
    Outcome {
        losses,
        parameters: parameter_bits(&model),
    }
}

fn options() -> WorldOptions {
    WorldOptions {
        step_timeout: std::time::Duration::from_secs(20),
        ..WorldOptions::default()
    }
}

/// The stages of a rank.
fn stages(job: Job, plan: &SchedulePlan, rank: usize, stream: &RandomStream) -> Vec<Toy> {
    let cut = partition(&vec![1.0; job.blocks], plan.num_stages()).expect("fits");
    let own = plan.stages_of(rank).into_iter();
    own.map(|stage| {
        Toy::new(
            job.kind,
            cut[stage].clone(),
            job.blocks,
            job.dropout,
            stream,
        )
    })
    .collect()
}

fn train(job: Job, plan: &SchedulePlan, recompute: Recompute, world: &World) -> Result<Outcome> {
    let ranks: Vec<usize> = (0..world.world_size()).collect();
    let stream = RandomStream::new(3);
    let links = PipelineLinks::over(world, &ranks)?;
    let mut runtime = PipelineRuntime::new(plan, links, &device())?
        .recompute(recompute)
        .random(&stream);
    let mut stages = stages(job, plan, world.rank(), &stream);
    let mut optimizers: Vec<ModuleOptimizer> =
        stages.iter().map(|_| AdamWConfig::new().init()).collect();
    let expected = simulate(plan, &StageCosts::units(plan.num_stages()))?.peak_live;
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let (batches, weights) = job.batches(step);
        let done = runtime.step(&stages, &batches, &weights)?;
        let live: Vec<usize> = runtime.stages().iter().map(|&s| expected[s]).collect();
        assert_eq!(done.peak_live, live, "live activations as simulated");
        if let Some(values) = &done.losses {
            losses.push(values.iter().map(|loss| loss.to_bits()).collect());
        }
        let gradients: Vec<GradientsParams> = done.mean_gradients(&stages);
        let pairs = stages.into_iter().zip(gradients).zip(&mut optimizers);
        stages = pairs
            .map(|((stage, gradients), optimizer)| optimizer.step(1e-2, stage, gradients))
            .collect();
    }
    Ok(Outcome {
        losses,
        parameters: stages.iter().flat_map(parameter_bits).collect(),
    })
}

/// Runs a pipeline of `p` ranks; parameters in the order of blocks.
fn together(job: Job, p: usize, schedule: &Schedule, recompute: Recompute) -> Outcome {
    let plan = schedule.plan(p, job.micro_batches).expect("a plan");
    let results = launch_threads(p, options(), |world| train(job, &plan, recompute, &world));
    let results = results.unwrap_or_else(|error| panic!("{schedule}, {p} ranks: {error}"));
    let last = plan.rank_of(plan.num_stages() - 1).expect("it is there");
    let losses = results[last].losses.clone();
    // Stage by stage, of the ranks in turn.
    let mut of_ranks: Vec<_> = results
        .into_iter()
        .map(|r| r.parameters.into_iter())
        .collect();
    let stream = RandomStream::new(3);
    let mut parameters = Vec::new();
    for stage in 0..plan.num_stages() {
        let rank = plan.rank_of(stage).expect("it is there");
        let slot = plan
            .stages_of(rank)
            .iter()
            .position(|s| *s == stage)
            .expect("own");
        let count = parameter_bits(&stages(job, &plan, rank, &stream)[slot]).len();
        parameters.extend(of_ranks[rank].by_ref().take(count));
    }
    Outcome { losses, parameters }
}

fn schedules(p: usize, m: usize) -> Vec<Schedule> {
    let mut schedules = vec![Schedule::GPipe, Schedule::OneFOneB, Schedule::ZeroBubbleH1];
    if m.is_multiple_of(p) {
        schedules.push(Schedule::Interleaved(2));
    }
    schedules
}

#[test]
fn every_schedule_is_one_rank_that_accumulates_bit_for_bit() {
    for m in [1, 3, 4, 8] {
        let job = Job::new(m);
        let one = alone(job);
        for p in [1, 2, 4] {
            for schedule in schedules(p, m) {
                for recompute in [Recompute::Nothing, Recompute::Stage, Recompute::Blocks] {
                    let many = together(job, p, &schedule, recompute);
                    assert!(
                        many == one,
                        "{schedule}, {p} ranks, {m} micro-batches, {recompute}"
                    );
                }
            }
        }
    }
}

#[test]
fn dropout_masks_depend_neither_on_schedule_nor_on_stages_nor_on_recompute() {
    let job = Job {
        dropout: 0.4,
        ..Job::new(4)
    };
    let one = alone(job);
    assert_ne!(one, alone(Job::new(4)), "something was dropped");
    for p in [1, 2, 4] {
        for schedule in schedules(p, 4) {
            for recompute in [Recompute::Nothing, Recompute::Stage, Recompute::Blocks] {
                let many = together(job, p, &schedule, recompute);
                assert!(many == one, "{schedule}, {p} ranks, {recompute}");
            }
        }
    }
}

#[test]
fn an_uneven_last_micro_batch_counts_its_items() {
    let job = Job {
        items: 7,
        ..Job::new(4)
    };
    let one = alone(job);
    for p in [1, 2] {
        for schedule in schedules(p, 4) {
            let many = together(job, p, &schedule, Recompute::Nothing);
            assert!(many == one, "{schedule}, {p} ranks");
        }
    }
    // The mean over items: four micro-batches of a mean that weighs them.
    let (batches, weights) = job.batches(0);
    let stream = RandomStream::new(3);
    let model = Toy::new(job.kind, 0..job.blocks, job.blocks, 0.0, &stream);
    let value = |batch: &Item| {
        let loss = model.whole_loss(0, 0, batch).into_data();
        loss.iter::<f64>().next().expect("one")
    };
    let parts = batches
        .iter()
        .zip(&weights)
        .map(|(batch, weight)| value(batch) * weight);
    let weighted = parts.sum::<f64>() / 4.0;
    let whole = value(&Item::of(0, 0..7));
    assert!(
        (weighted - whole).abs() < 1e-6 * whole,
        "{weighted} {whole}"
    );
}

#[test]
fn running_statistics_are_updated_once() {
    let job = Job {
        kind: Kind::BatchNorm,
        ..Job::new(4)
    };
    // BatchNorm's running state shows itself as a parameter that is not trained: compare all values.
    let state = |recompute| {
        let plan = Schedule::OneFOneB.plan(2, 4).expect("a plan");
        let results = launch_threads(2, options(), |world| {
            let stream = RandomStream::new(3);
            let links = PipelineLinks::over(&world, &[0, 1])?;
            let mut runtime = PipelineRuntime::new(&plan, links, &device())?.recompute(recompute);
            let stages = stages(job, &plan, world.rank(), &stream);
            for step in 0..3 {
                let (batches, weights) = job.batches(step);
                runtime.step(&stages, &batches, &weights)?;
            }
            Ok(stages.iter().flat_map(Toy::statistics).collect::<Vec<_>>())
        });
        results.expect("no fault")
    };
    let kept = state(Recompute::Nothing);
    assert!(
        kept[0].iter().any(|value| *value != 0.0 && *value != 1.0),
        "{kept:?}"
    );
    for recompute in [Recompute::Stage, Recompute::Blocks] {
        assert_eq!(state(recompute), kept, "{recompute}");
    }
}

#[test]
fn stages_without_parameters_and_tensors_of_other_kinds_pass() {
    for kind in [Kind::Pass, Kind::Mixed] {
        let job = Job {
            kind,
            ..Job::new(4)
        };
        let one = alone(job);
        for p in [2, 4] {
            for schedule in schedules(p, 4) {
                for recompute in [Recompute::Nothing, Recompute::Blocks] {
                    let many = together(job, p, &schedule, recompute);
                    assert!(many == one, "{kind:?}, {schedule}, {p} ranks, {recompute}");
                }
            }
        }
    }
}

#[test]
fn a_schedule_of_ones_own() {
    // Backward in the reverse order of micro-batches, as some pipelines do: sums are still in order.
    let text = "0F0 0F1 0F2 0B2 0B1 0B0\n1F0 1F1 1F2 1B2 1B1 1B0";
    let plan: SchedulePlan = text.parse().expect("a plan");
    let job = Job::new(3);
    let results = launch_threads(2, options(), |world| {
        train(job, &plan, Recompute::Nothing, &world)
    });
    let results = results.expect("no fault");
    let one = alone(job);
    assert_eq!(results[1].losses, one.losses);
    let parameters = results.into_iter().flat_map(|result| result.parameters);
    assert_eq!(parameters.collect::<Vec<_>>(), one.parameters);
}

#[test]
fn blocks_are_measured_on_one_rank_that_holds_them_all() {
    let stream = RandomStream::new(3);
    let whole = Toy::new(Kind::Mixed, 0..4, 4, 0.0, &stream);
    let seconds = measure_blocks(&whole, &Item::of(0, 0..2), 3).expect("right");
    assert_eq!(seconds.len(), 4);
    assert!(seconds.iter().all(|&time| time > 0.0), "{seconds:?}");
    assert_eq!(partition(&seconds, 2).expect("right").len(), 2);
    let rest = Toy::new(Kind::Mixed, 1..4, 4, 0.0, &stream);
    assert!(measure_blocks(&rest, &Item::of(0, 0..2), 3).is_err());
    assert!(measure_blocks(&whole, &Item::of(0, 0..2), 0).is_err());
}
