//! The training loop of `train_gpt`, the same for every number of ranks.

use std::sync::Arc;
use std::time::Instant;

use burn::data::dataset::Dataset;
use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams};
use burn::tensor::Device;
use burn_dist::communicator::{HostBuffer, Operation, RecordingCommunicator, ReduceOp};
use burn_dist::data::{DistributedSampler, Remainder, SamplerOptions};
use burn_dist::data_parallel::{
    BucketSizes, DataParallel, DataParallelConfig, NaiveDataParallel, ParameterTable,
    RankOrderAccumulator, parameter_hash,
};
use burn_dist::{DistError, ProcessGroup, Result, World};

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

/// How gradients of one optimizer step come together.
enum Synchronization {
    Overlapped(DataParallel),
    Plain(NaiveDataParallel),
    /// One rank in the grouping of many.
    AsRanks(usize),
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
    let (synchronization, model) = synchronize(model, arguments, &gradients)?;
    let before = gradients.traffic();
    let mut trainer = Trainer {
        arguments,
        device: device.clone(),
        dataset: WindowDataset::new(corpus.bytes(), arguments.seq),
        sampler: sampler(world, arguments, corpus)?,
        synchronization,
        metrics: metrics.clone(),
    };
    let progress = Progress::new(world.rank(), arguments.steps);
    let run = trainer.run(model, &progress, || {
        (&gradients.traffic() - &before).total_sent()
    })?;
    progress.end();
    let sent = (&gradients.traffic() - &before).total_sent();
    let report = report(&run, arguments, &metrics, sent)?;
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

fn synchronize(
    model: Gpt,
    arguments: &Arguments,
    group: &ProcessGroup,
) -> Result<(Synchronization, Gpt)> {
    if let Some(ranks) = arguments.as_ranks {
        return Ok((Synchronization::AsRanks(ranks), model));
    }
    let config = DataParallelConfig {
        bucket_sizes: BucketSizes {
            first: arguments.bucket_bytes.min(1_000_000),
            rest: arguments.bucket_bytes,
        },
        average_micro_steps: true,
    };
    let (parallel, wrapped) = DataParallel::wrap_with(model, group, config)?;
    if arguments.no_overlap {
        let naive = NaiveDataParallel::new(group).with_micro_steps(arguments.micro_batches);
        return Ok((Synchronization::Plain(naive), wrapped.materialize()));
    }
    Ok((Synchronization::Overlapped(parallel), wrapped))
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
    synchronization: Synchronization,
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
        let mut optimizer = AdamWConfig::new().init();
        let mut losses = Vec::with_capacity(self.arguments.steps);
        let mut step_seconds = Vec::with_capacity(self.arguments.steps);
        let tokens = (self.arguments.batch * self.arguments.seq) as f64;
        for step in 0..self.arguments.steps {
            let start = Instant::now();
            let (loss, gradients) = self.step(&model, step)?;
            model = optimizer.step(self.arguments.lr, model, gradients);
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

    /// Losses of this rank's micro-batches, one list per rank that it computes for, and the mean
    /// gradient.
    fn step(&self, model: &Gpt, step: usize) -> Result<(Vec<Vec<f32>>, GradientsParams)> {
        let micro_batches = self.micro_batches(step)?;
        let loss_of = |windows: &[Vec<u8>]| {
            let (tokens, targets) = token_batch(windows, &self.device);
            model.loss(tokens, targets)
        };
        let mut losses = Vec::new();
        match &self.synchronization {
            Synchronization::Overlapped(parallel) => {
                let (last, first) = micro_batches
                    .split_last()
                    .expect("invariant: at least one micro-batch");
                for windows in first {
                    let loss = loss_of(windows);
                    losses.push(loss.clone().into_scalar::<f32>());
                    parallel.no_sync(|| loss.backward());
                }
                let loss = loss_of(last);
                losses.push(loss.clone().into_scalar::<f32>());
                let gradients = parallel.sync(loss.backward(), model)?;
                Ok((vec![losses], gradients))
            }
            Synchronization::Plain(parallel) => {
                let mut accumulator = GradientsAccumulator::new();
                for windows in &micro_batches {
                    let loss = loss_of(windows);
                    losses.push(loss.clone().into_scalar::<f32>());
                    let gradients = GradientsParams::from_grads(loss.backward(), model);
                    accumulator.accumulate(model, gradients);
                }
                let gradients = parallel.sync(accumulator.grads(), model)?;
                Ok((vec![losses], gradients))
            }
            Synchronization::AsRanks(_) => {
                let mut accumulator = RankOrderAccumulator::new();
                let mut all = Vec::new();
                for rank in micro_batches.chunks(self.arguments.micro_batches) {
                    let mut losses = Vec::new();
                    for windows in rank {
                        let loss = loss_of(windows);
                        losses.push(loss.clone().into_scalar::<f32>());
                        let gradients = GradientsParams::from_grads(loss.backward(), model);
                        accumulator.add(model, gradients);
                    }
                    accumulator.end_rank(model);
                    all.push(losses);
                }
                Ok((all, accumulator.mean(model)))
            }
        }
    }

    /// The windows of each micro-batch that this rank computes in a step.
    fn micro_batches(&self, step: usize) -> Result<Vec<Vec<Vec<u8>>>> {
        let batch = self.arguments.batch;
        let items = self
            .sampler
            .local_batch(step as u64 * batch as u64, batch)?;
        let ranks_here = match self.synchronization {
            Synchronization::AsRanks(ranks) => ranks,
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

fn report(run: &Run, arguments: &Arguments, metrics: &ProcessGroup, sent: u64) -> Result<Report> {
    let table = ParameterTable::of(&run.model.clone().materialize())?;
    let ranks = metrics.size();
    let total_sent = metrics.all_reduce_values(vec![sent], ReduceOp::Sum)?[0];
    let per_rank = |bytes: u64| bytes as f64 / ranks as f64;
    let num_parameters: usize = table.specs().iter().map(|spec| spec.num_elements()).sum();
    let mut bytes = (num_parameters * size_of::<f32>()) as u64;
    if arguments.no_overlap && arguments.as_ranks.is_none() {
        // The plain twin also asks for each parameter whether any rank used it: one byte.
        bytes += table.specs().len() as u64;
    }
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
            formula: per_rank(2 * bytes * (ranks as u64 - 1)),
        },
        tokens_per_second: (arguments.batch * arguments.seq) as f64 / step_seconds,
        step_seconds,
        peak_rss_bytes: rss.into_iter().flatten().collect(),
        num_parameters,
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
