//! The training loop of `train_gpt`, the same for every number of ranks.

use std::time::Instant;

use burn::data::dataset::Dataset;
use burn::tensor::Device;
use burn_dist::communicator::{HostBuffer, Operation, ReduceOp};
use burn_dist::data::{DistributedSampler, Remainder, SamplerOptions};
use burn_dist::data_parallel::{ParameterTable, parameter_hash};
use burn_dist::tensor_parallel::{GradientAudit, TensorParallel};
use burn_dist::{DistError, ProcessGroup, Result, World};

use super::language_model::LanguageModel;
use super::progress::Progress;
use super::rank_groups::RankGroups;
use super::strategy::Strategy;
use super::traffic_formula::{bytes_of_all_ranks, bytes_of_split_layers, num_parameters};
use super::{Arguments, BytesPerStep, Report};
use crate::gpt::{Gpt, GptConfig, sample};
use crate::text::{Corpus, WindowDataset, token_batch};
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
    let groups = RankGroups::new(world, arguments)?;
    let mut device = Device::flex().autodiff();
    if arguments.recompute {
        device = device.gradient_checkpointing();
    }
    let job = Job {
        world,
        arguments,
        corpus,
        everyone: world.whole()?,
        groups: &groups,
        device: &device,
    };
    let config = GptConfig::new()
        .with_seq(arguments.seq)
        .with_layers(arguments.layers)
        .with_hidden(arguments.hidden)
        .with_heads(arguments.heads);
    match &groups.tensor {
        None => job.run(|| Ok(config.init(&device))),
        Some(group) => {
            let parallel = TensorParallel::new(group)
                .sequence_parallel(arguments.sequence_parallel)
                .regather(arguments.recompute)
                .overlap(!arguments.no_overlap);
            job.run(|| config.init_parallel(&parallel, &device))
        }
    }
}

/// The samples of each step.
struct Batches<'a> {
    arguments: &'a Arguments,
    dataset: WindowDataset,
    sampler: DistributedSampler,
}

impl Batches<'_> {
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
}

/// What a rank trains with.
struct Job<'a> {
    world: &'a World,
    arguments: &'a Arguments,
    corpus: &'a Corpus,
    everyone: ProcessGroup,
    groups: &'a RankGroups,
    device: &'a Device,
}

impl Job<'_> {
    /// Lists every parameter's reductions, and checks them on the first micro-batch.
    fn audit<M: LanguageModel>(&self, model: &M, data: &Batches<'_>) -> Result<()> {
        let Some(tensor) = &self.groups.tensor else {
            return Ok(());
        };
        let windows = data.micro_batches(0)?.swap_remove(0);
        let audit = GradientAudit::new(tensor).data_parallel(&self.groups.shard);
        let report = audit.run(model, |model| {
            let (tokens, targets) = token_batch(&windows, self.device);
            model.mean_loss(tokens, targets)
        })?;
        if self.world.rank() == 0 {
            println!("{report}");
        }
        Ok(())
    }

    fn run<M: LanguageModel>(&self, model: impl Fn() -> Result<M>) -> Result<Report> {
        let Self {
            world,
            arguments,
            corpus,
            everyone,
            groups,
            device,
        } = self;
        let model = in_turn(everyone, || {
            device.seed(arguments.seed);
            let model = model()?;
            // Burn draws parameters when they are first read; reading the table draws them now. Stage 3
            // draws them on the first rank, one at a time.
            if arguments.zero < 3 || arguments.tp > 1 {
                ParameterTable::of(&model)?;
            }
            Ok(model)
        })?;
        let data = Batches {
            arguments,
            dataset: WindowDataset::new(corpus.bytes(), arguments.seq),
            sampler: sampler(&groups.data, arguments, corpus)?,
        };
        if arguments.audit {
            self.audit(&model, &data)?;
        }
        let (strategy, model) = Strategy::parallelize(model, arguments, groups)?;
        let before = groups.sent();
        let mut trainer = Trainer {
            arguments,
            device: (*device).clone(),
            data,
            strategy,
            groups,
        };
        let progress = Progress::new(world.rank(), arguments.steps);
        let run = trainer.run(model, &progress, || groups.sent() - before)?;
        progress.end();
        let sent = groups.sent() - before;
        let gathers = trainer.strategy.gathers();
        // From here on parameters are not sharded any more.
        let unsharded = run.model.materialize();
        let data_ranks = groups.data.size() as u64;
        let replicas = groups.num_replicas() as u64;
        let tp = arguments.tp as u64;
        let sharded = bytes_of_all_ranks(
            &trainer.strategy,
            &unsharded,
            arguments,
            data_ranks,
            replicas,
            &gathers,
        );
        let split = match tp {
            1 => 0,
            _ => bytes_of_split_layers(arguments, data_ranks),
        };
        let run = Run {
            model: unsharded.whole()?,
            losses: run.losses,
            step_seconds: run.step_seconds,
        };
        let formula = sharded * tp + split * data_ranks;
        let report = report(&run, arguments, everyone, sent, formula)?;
        if world.rank() == 0 {
            if let Some(path) = &arguments.json {
                report.write_json(path)?;
            }
            println!("{report}");
            let (seq, seed) = (arguments.seq, arguments.seed);
            let text = sample(&run.model, b"pub fn ", 160, seq, seed, device);
            println!("\nsample:\n{}", String::from_utf8_lossy(&text));
        }
        Ok(report)
    }
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

fn sampler(
    data: &ProcessGroup,
    arguments: &Arguments,
    corpus: &Corpus,
) -> Result<DistributedSampler> {
    let windows = WindowDataset::new(corpus.bytes(), arguments.seq).len();
    let options = SamplerOptions {
        seed: arguments.seed,
        shuffle: true,
        remainder: Remainder::Drop,
    };
    DistributedSampler::new(windows, data.size(), data.index(), options)
}

struct Trainer<'a> {
    arguments: &'a Arguments,
    device: Device,
    data: Batches<'a>,
    strategy: Strategy,
    groups: &'a RankGroups,
}

struct Run<M> {
    model: M,
    losses: Vec<f32>,
    step_seconds: Vec<f64>,
}

impl Trainer<'_> {
    fn run<M: LanguageModel>(
        &mut self,
        mut model: M,
        progress: &Progress,
        bytes_sent: impl Fn() -> u64,
    ) -> Result<Run<M>> {
        let parts = self.groups.model_parallel();
        let mut losses = Vec::with_capacity(self.arguments.steps);
        let mut step_seconds = Vec::with_capacity(self.arguments.steps);
        let tokens = (self.arguments.batch * self.arguments.seq) as f64;
        for step in 0..self.arguments.steps {
            let start = Instant::now();
            let micro_batches = self.data.micro_batches(step)?;
            let strategy = &mut self.strategy;
            let (loss, stepped) = strategy.step(
                model,
                &micro_batches,
                (self.arguments, &parts),
                &self.device,
            )?;
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

    /// The mean over all micro-batches of all ranks: each rank's sum in order, the ranks' sums in
    /// rank order, one division.
    fn mean_loss(&self, losses: &[Vec<f32>]) -> Result<f32> {
        let sum = |values: &[f32]| values.iter().copied().reduce(|a, b| a + b).unwrap_or(0.0);
        let ranks: Vec<f32> = losses.iter().map(|losses| sum(losses)).collect();
        let count: usize = losses.iter().map(Vec::len).sum();
        let total = HostBuffer::from_values(vec![sum(&ranks)]);
        let total = self
            .groups
            .data
            .run(Operation::AllReduce(ReduceOp::Sum), total)?
            .to_values::<f32>()[0];
        Ok(total / (count * self.groups.data.size()) as f32)
    }
}

fn report(
    run: &Run<Gpt>,
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
