//! The training loop of `train_gpt`, the same for every number of ranks.

use std::time::Instant;

use burn::data::dataset::Dataset;
use burn::module::Module;
use burn::tensor::Device;
use burn_dist::communicator::{HostBuffer, Operation, ReduceOp};
use burn_dist::data::{DistributedSampler, Remainder, SamplerOptions};
use burn_dist::data_parallel::{ParameterTable, parameter_hash};
use burn_dist::{DistError, ProcessGroup, Result, World};

use super::gradient_groups::GradientGroups;
use super::progress::Progress;
use super::strategy::Strategy;
use super::traffic_formula::{bytes_of_all_ranks, num_parameters};
use super::{Arguments, BytesPerStep, Report};
use crate::gpt::{Gpt, GptConfig, sample};
use crate::text::{Corpus, WindowDataset};
use crate::workload::{median, peak_rss_bytes};

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

/// Trains over all ranks of `world`; the report is the same on every rank.
///
/// # Errors
/// What the arguments, the text or a group met.
pub fn train(world: &World, arguments: &Arguments, corpus: &Corpus) -> Result<Report> {
    let groups = GradientGroups::new(world, arguments.replicate)?;
    let metrics = world.whole()?;
    let mut device = Device::flex().autodiff();
    if arguments.recompute {
        device = device.gradient_checkpointing();
    }
    let model = in_turn(&metrics, || initialize(arguments, &device))?;
    let (strategy, model) = Strategy::parallelize(model, arguments, &groups)?;
    let before = groups.sent();
    let mut trainer = Trainer {
        arguments,
        device: device.clone(),
        dataset: WindowDataset::new(corpus.bytes(), arguments.seq),
        sampler: sampler(world, arguments, corpus)?,
        strategy,
        metrics: metrics.clone(),
    };
    let progress = Progress::new(world.rank(), arguments.steps);
    let mut run = trainer.run(model, &progress, || groups.sent() - before)?;
    progress.end();
    let sent = groups.sent() - before;
    let gathers = trainer.strategy.gathers();
    // From here on the model is whole, on every rank.
    run.model = run.model.materialize();
    let formula = bytes_of_all_ranks(
        &trainer.strategy,
        &run.model,
        arguments,
        metrics.size() as u64,
        groups.num_replicas() as u64,
        &gathers,
    );
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
    // Burn draws parameters when they are first read; reading the table draws them now. Stage 3 draws them
    // on the first rank, one at a time.
    if arguments.zero < 3 {
        ParameterTable::of(&model)?;
    }
    Ok(model)
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
            let micro_batches = self.micro_batches(step)?;
            let strategy = &mut self.strategy;
            let (loss, stepped) =
                strategy.step(model, &micro_batches, self.arguments, &self.device)?;
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

    /// The windows of each micro-batch that this rank computes in a step.
    fn micro_batches(&self, step: usize) -> Result<Vec<Vec<Vec<u8>>>> {
        let batch = self.arguments.batch;
        let items = self
            .sampler
            .local_batch(step as u64 * batch as u64, batch)?;
        let ranks_here = self.arguments.virtual_ranks();
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
    let step_seconds = median(run.step_seconds.clone());
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
            formula: per_rank(formula) / arguments.steps as f64,
        },
        tokens_per_second: (arguments.batch * arguments.seq) as f64 / step_seconds,
        step_seconds,
        peak_rss_bytes: rss.into_iter().flatten().collect(),
        num_parameters: num_parameters(&run.model),
    })
}
