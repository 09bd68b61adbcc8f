//! The training loop of `train_gpt`, the same for every number of ranks.

use std::sync::Arc;
use std::time::Instant;

use burn::data::dataset::Dataset;
use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::Device;
use burn_dist::communicator::{HostBuffer, Operation, RecordingCommunicator, ReduceOp};
use burn_dist::data::{DistributedSampler, Remainder, SamplerOptions};
use burn_dist::data_parallel::{
    BucketSizes, DataParallel, DataParallelConfig, NaiveDataParallel, ParameterTable,
    RankOrderAccumulator, parameter_hash,
};
use burn_dist::{DistError, ProcessGroup, Result, World};
use burn_zero::{ShardedOptimizer, ShardedOptimizerConfig};

use super::progress::Progress;
use super::{Arguments, BytesPerStep, Report};
use crate::gpt::{Gpt, GptConfig, sample};
use crate::text::{Corpus, WindowDataset, token_batch};

/// Checks the arguments and reads the text, before any rank starts.
///
/// # Errors
/// [`DistError::Config`] or [`DistError::File`].
pub fn prepare(arguments: &Arguments, ranks: usize) -> Result<Corpus> {
    arguments.check(ranks)?;
    if let Some(path) = &arguments.json {
        Report::check_json(path)?;
    }
    let corpus = match &arguments.data {
        Some(path) => Corpus::read(path)?,
        None => Corpus::burn_sources()?,
    };
    let windows = WindowDataset::new(corpus.bytes(), arguments.seq).len();
    if windows < arguments.batch {
        return Err(DistError::config(
            format!(
                "the text has {} bytes, {windows} sequences of {}, but --batch is {}",
                corpus.bytes().len(),
                arguments.seq,
                arguments.batch
            ),
            "take a longer text, a shorter --seq or a smaller --batch",
        ));
    }
    Ok(corpus)
}

/// How one optimizer step comes about.
enum Strategy {
    Overlapped(DataParallel, ModuleOptimizer),
    Plain(NaiveDataParallel, ModuleOptimizer),
    Sharded(ShardedOptimizer),
    /// One rank in the grouping of many.
    AsRanks(usize, ModuleOptimizer),
}

/// Trains over all ranks of `world`; the report is the same on every rank.
///
/// # Errors
/// What the arguments, the text or a group met.
pub fn train(world: &World, arguments: &Arguments, corpus: &Corpus) -> Result<Report> {
    let gradients = world.whole()?;
    let gradients = ProcessGroup::new(Arc::new(RecordingCommunicator::new(
        gradients.communicator().clone(),
    )));
    // A group of its own, so that the gradients' bytes are counted alone.
    let metrics = world.whole()?;
    let device = Device::flex().autodiff();
    let model = in_turn(&metrics, || initialize(arguments, &device))?;
    let (strategy, model) = parallelize(model, arguments, &gradients)?;
    let before = gradients.traffic();
    let mut trainer = Trainer {
        arguments,
        device: device.clone(),
        dataset: WindowDataset::new(corpus.bytes(), arguments.seq),
        sampler: sampler(world, arguments, corpus)?,
        strategy,
        metrics: metrics.clone(),
    };
    let progress = Progress::new(world.rank(), arguments.steps);
    let run = trainer.run(model, &progress, || {
        (&gradients.traffic() - &before).total_sent()
    })?;
    progress.end();
    let sent = (&gradients.traffic() - &before).total_sent();
    let formula = trainer.bytes_of_all_ranks(&run.model);
    let report = report(&run, arguments, &metrics, sent, formula)?;
    if world.rank() == 0 {
        if let Some(path) = &arguments.json {
            report.write_json(path)?;
        }
        println!("{report}");
        let (seq, seed) = (arguments.seq, arguments.seed);
        let text = sample(&run.model, b"pub fn ", 160, seq, seed, &device);
        println!("\nsample:\n{}", String::from_utf8_lossy(&text));
    }
    Ok(report)
}

/// Runs `f` on one rank after the other: rank threads share Burn's random generator, and each
/// must draw from the seed on its own.
fn in_turn<T>(group: &ProcessGroup, f: impl Fn() -> Result<T>) -> Result<T> {
    let mut result = None;
    for turn in 0..group.size() {
        if turn == group.index() {
            result = Some(f());
        }
        group.barrier()?;
    }
    result.expect("invariant: every index has its turn")
}

fn initialize(arguments: &Arguments, device: &Device) -> Result<Gpt> {
    device.seed(arguments.seed);
    let model = GptConfig::new()
        .with_seq(arguments.seq)
        .with_layers(arguments.layers)
        .with_hidden(arguments.hidden)
        .with_heads(arguments.heads)
        .init(device);
    // Burn draws parameters when they are first read; reading the table draws them now.
    ParameterTable::of(&model)?;
    Ok(model)
}

fn parallelize(model: Gpt, arguments: &Arguments, group: &ProcessGroup) -> Result<(Strategy, Gpt)> {
    let optimizer = AdamWConfig::new();
    if let Some(ranks) = arguments.as_ranks {
        return Ok((Strategy::AsRanks(ranks, optimizer.init()), model));
    }
    let bucket_sizes = BucketSizes {
        first: arguments.bucket_bytes.min(1_000_000),
        rest: arguments.bucket_bytes,
    };
    if arguments.zero > 0 {
        let config = ShardedOptimizerConfig {
            bucket_sizes,
            average_micro_steps: true,
            ..ShardedOptimizerConfig::default()
        };
        let (sharded, model) =
            ShardedOptimizer::wrap_with(model, optimizer.build(), group, config)?;
        return Ok((Strategy::Sharded(sharded), model));
    }
    let config = DataParallelConfig {
        bucket_sizes,
        average_micro_steps: true,
        ..DataParallelConfig::default()
    };
    let (parallel, wrapped) = DataParallel::wrap_with(model, group, config)?;
    let optimizer = optimizer.init();
    if arguments.no_overlap {
        let naive = NaiveDataParallel::new(group).with_micro_steps(arguments.micro_batches);
        return Ok((Strategy::Plain(naive, optimizer), wrapped.materialize()));
    }
    Ok((Strategy::Overlapped(parallel, optimizer), wrapped))
}

fn sampler(world: &World, arguments: &Arguments, corpus: &Corpus) -> Result<DistributedSampler> {
    let windows = WindowDataset::new(corpus.bytes(), arguments.seq).len();
    let options = SamplerOptions {
        seed: arguments.seed,
        shuffle: true,
        remainder: Remainder::Drop,
    };
    DistributedSampler::new(windows, world.world_size(), world.rank(), options)
}

struct Trainer<'a> {
    arguments: &'a Arguments,
    device: Device,
    dataset: WindowDataset,
    sampler: DistributedSampler,
    strategy: Strategy,
    metrics: ProcessGroup,
}

struct Run {
    model: Gpt,
    losses: Vec<f32>,
    step_seconds: Vec<f64>,
}

impl Trainer<'_> {
    fn run(
        &mut self,
        mut model: Gpt,
        progress: &Progress,
        bytes_sent: impl Fn() -> u64,
    ) -> Result<Run> {
        let mut losses = Vec::with_capacity(self.arguments.steps);
        let mut step_seconds = Vec::with_capacity(self.arguments.steps);
        let tokens = (self.arguments.batch * self.arguments.seq) as f64;
        for step in 0..self.arguments.steps {
            let start = Instant::now();
            let (loss, stepped) = self.step(model, step)?;
            model = stepped;
            let loss = self.mean_loss(&loss)?;
            losses.push(loss);
            let seconds = start.elapsed().as_secs_f64();
            step_seconds.push(seconds);
            progress.show(step, loss, tokens / seconds, bytes_sent());
        }
        Ok(Run {
            model,
            losses,
            step_seconds,
        })
    }

    /// Losses of this rank's micro-batches, one list per rank that it computes for, and the model
    /// after the step.
    fn step(&mut self, model: Gpt, step: usize) -> Result<(Vec<Vec<f32>>, Gpt)> {
        let micro_batches = self.micro_batches(step)?;
        let (lr, device) = (self.arguments.lr, &self.device);
        let loss_of = |model: &Gpt, windows: &[Vec<u8>], losses: &mut Vec<f32>| {
            let (tokens, targets) = token_batch(windows, device);
            let loss = model.loss(tokens, targets);
            losses.push(loss.clone().into_scalar::<f32>());
            loss
        };
        let mut losses = Vec::new();
        let (last, first) = micro_batches
            .split_last()
            .expect("invariant: at least one micro-batch");
        match &mut self.strategy {
            Strategy::Overlapped(parallel, optimizer) => {
                for windows in first {
                    let loss = loss_of(&model, windows, &mut losses);
                    parallel.no_sync(|| loss.backward());
                }
                let loss = loss_of(&model, last, &mut losses);
                let gradients = parallel.sync(loss.backward(), &model)?;
                Ok((vec![losses], optimizer.step(lr, model, gradients)))
            }
            Strategy::Sharded(sharded) => {
                for windows in first {
                    let loss = loss_of(&model, windows, &mut losses);
                    sharded.no_sync(|| loss.backward());
                }
                let loss = loss_of(&model, last, &mut losses);
                let model = sharded.step(lr, model, loss.backward())?;
                Ok((vec![losses], model))
            }
            Strategy::Plain(parallel, optimizer) => {
                let mut accumulator = GradientsAccumulator::new();
                for windows in &micro_batches {
                    let loss = loss_of(&model, windows, &mut losses);
                    let gradients = GradientsParams::from_grads(loss.backward(), &model);
                    accumulator.accumulate(&model, gradients);
                }
                let gradients = parallel.sync(accumulator.grads(), &model)?;
                Ok((vec![losses], optimizer.step(lr, model, gradients)))
            }
            Strategy::AsRanks(_, optimizer) => {
                let mut accumulator = RankOrderAccumulator::new();
                let mut all = Vec::new();
                for rank in micro_batches.chunks(self.arguments.micro_batches) {
                    let mut losses = Vec::new();
                    for windows in rank {
                        let loss = loss_of(&model, windows, &mut losses);
                        let gradients = GradientsParams::from_grads(loss.backward(), &model);
                        accumulator.add(&model, gradients);
                    }
                    accumulator.end_rank(&model);
                    all.push(losses);
                }
                let gradients = accumulator.mean(&model);
                Ok((all, optimizer.step(lr, model, gradients)))
            }
        }
    }

    /// Bytes that all ranks together send in a step, by formula.
    fn bytes_of_all_ranks(&self, model: &Gpt) -> u64 {
        let ranks = self.metrics.size() as u64;
        let size = size_of::<f32>() as u64;
        let twice = |bytes: u64| 2 * bytes * (ranks - 1);
        match &self.strategy {
            Strategy::Sharded(sharded) => {
                let held = sharded.layout().held_by_each() as u64 * ranks;
                // And a byte per parameter to know whether any rank used it.
                twice(held * size) + twice(num_tensors(model))
            }
            // The plain twin asks for each parameter whether any rank used it: one byte.
            Strategy::Plain(..) => twice(num_parameters(model) * size) + twice(num_tensors(model)),
            Strategy::Overlapped(..) | Strategy::AsRanks(..) => twice(num_parameters(model) * size),
        }
    }

    /// The windows of each micro-batch that this rank computes in a step.
    fn micro_batches(&self, step: usize) -> Result<Vec<Vec<Vec<u8>>>> {
        let batch = self.arguments.batch;
        let items = self
            .sampler
            .local_batch(step as u64 * batch as u64, batch)?;
        let ranks_here = match self.strategy {
            Strategy::AsRanks(ranks, _) => ranks,
            _ => 1,
        };
        let size = items.len() / (ranks_here * self.arguments.micro_batches);
        Ok(items
            .chunks(size)
            .map(|items| items.iter().flat_map(|&i| self.dataset.get(i)).collect())
            .collect())
    }

    /// The mean over all micro-batches of all ranks: each rank's sum in order, the ranks' sums in
    /// rank order, one division.
    fn mean_loss(&self, losses: &[Vec<f32>]) -> Result<f32> {
        let sum = |values: &[f32]| values.iter().copied().reduce(|a, b| a + b).unwrap_or(0.0);
        let ranks: Vec<f32> = losses.iter().map(|losses| sum(losses)).collect();
        let count: usize = losses.iter().map(Vec::len).sum();
        let total = HostBuffer::from_values(vec![sum(&ranks)]);
        let total = self
            .metrics
            .run(Operation::AllReduce(ReduceOp::Sum), total)?
            .to_values::<f32>()[0];
        Ok(total / (count * self.metrics.size()) as f32)
    }
}

/// Parameters of a model without its wrappers.
fn parameters(model: &Gpt) -> ParameterTable {
    ParameterTable::of(&model.clone().materialize()).expect("invariant: nothing is wrapped")
}

fn num_tensors(model: &Gpt) -> u64 {
    parameters(model).specs().len() as u64
}

fn num_parameters(model: &Gpt) -> u64 {
    let table = parameters(model);
    let elements = table.specs().iter().map(|spec| spec.num_elements());
    elements.sum::<usize>() as u64
}

fn report(
    run: &Run,
    arguments: &Arguments,
    metrics: &ProcessGroup,
    sent: u64,
    formula: u64,
) -> Result<Report> {
    let ranks = metrics.size();
    let total_sent = metrics.all_reduce_values(vec![sent], ReduceOp::Sum)?[0];
    let per_rank = |bytes: u64| bytes as f64 / ranks as f64;
    let mut sorted = run.step_seconds.clone();
    sorted.sort_by(f64::total_cmp);
    let step_seconds = sorted[sorted.len() / 2];
    let rss = metrics.all_gather_values(vec![peak_rss_bytes()])?;
    Ok(Report {
        ranks,
        loss_bits: run
            .losses
            .iter()
            .map(|loss| format!("{:08x}", loss.to_bits()))
            .collect(),
        losses: run.losses.clone(),
        parameter_hash: parameter_hash(&run.model),
        bytes_per_step: BytesPerStep {
            measured: per_rank(total_sent) / arguments.steps as f64,
            formula: per_rank(formula),
        },
        tokens_per_second: (arguments.batch * arguments.seq) as f64 / step_seconds,
        step_seconds,
        peak_rss_bytes: rss.into_iter().flatten().collect(),
        num_parameters: num_parameters(&run.model) as usize,
    })
}

/// `VmHWM` of this process; 0 where the system does not tell.
fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| {
            rest.trim()
                .trim_end_matches("kB")
                .trim()
                .parse::<u64>()
                .ok()
        })
        .map_or(0, |kib| kib * 1024)
}
