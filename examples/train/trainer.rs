//! The training loop of `train_gpt`, the same for every number of ranks.

use std::time::Instant;

use burn::data::dataset::Dataset;
use burn::module::Module;
use burn::tensor::Device;
use burn_dist::backend::DeferredProducts;
use burn_dist::communicator::{HostBuffer, Operation, ReduceOp};
use burn_dist::data_parallel::{ParameterTable, parameter_hash};
use burn_dist::tensor_parallel::{GradientAudit, TensorParallel};
use burn_dist::{DistError, ProcessGroup, Result, World};
use burn_pipeline::{BlockStage, PipelineLinks, PipelineRuntime, Recompute, partition};

use super::batches::Batches;
use super::dealt_part::DealtPart;
use super::language_model::LanguageModel;
use super::piped::{Piped, PipedContext};
use super::progress::Progress;
use super::rank_groups::RankGroups;
use super::tracing::{Traced, check_folder};
use super::traffic_formula::num_parameters;
use super::training::Training;
use super::unpiped::Unpiped;
use super::{Arguments, BytesPerStep, DeviceName, Report};
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
    if let Some(folder) = &arguments.trace {
        check_folder(folder)?;
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
    let (groups, links) = RankGroups::new(world, arguments)?;
    let mut device = arguments.device.open(world.local_rank())?.autodiff();
    // Blocks of a pipeline run again as a whole.
    if arguments.recompute && !arguments.is_piped() {
        device = device.gradient_checkpointing();
    }
    // The same parameters on every device.
    let host = match arguments.device {
        DeviceName::Flex => device.clone(),
        _ => Device::flex().autodiff(),
    };
    let config = GptConfig::new()
        .with_seq(arguments.seq)
        .with_layers(arguments.layers)
        .with_hidden(arguments.hidden)
        .with_heads(arguments.heads);
    let job = Job {
        world,
        arguments,
        corpus,
        everyone: world.whole()?,
        groups: &groups,
        config: &config,
        device: &device,
        host: &host,
    };
    let parallel = groups.tensor.as_ref().map(|group| {
        TensorParallel::new(group)
            .sequence_parallel(arguments.sequence_parallel)
            .regather(arguments.recompute && !arguments.is_piped())
            .overlap(!arguments.no_overlap)
    });
    match (links, parallel) {
        (None, None) => job.unpiped(|| Ok(config.init(&host))),
        (None, Some(parallel)) => job.unpiped(|| config.init_parallel(&parallel, &host)),
        (Some(links), None) => {
            let products = DeferredProducts::default();
            let parts = || Ok(config.init_parts(&products, &host));
            job.piped(links, &products, parts)
        }
        (Some(links), Some(parallel)) => {
            let parts = || config.init_parallel_parts(&parallel, &host);
            job.piped(links, &DeferredProducts::default(), parts)
        }
    }
}

/// What a rank trains with.
struct Job<'a> {
    world: &'a World,
    arguments: &'a Arguments,
    corpus: &'a Corpus,
    everyone: ProcessGroup,
    groups: &'a RankGroups,
    config: &'a GptConfig,
    device: &'a Device,
    /// On which parameters are drawn, and text at the end.
    host: &'a Device,
}

impl Job<'_> {
    /// All layers on every rank, whole or split.
    fn unpiped<M: LanguageModel>(&self, model: impl Fn() -> Result<M>) -> Result<Report> {
        let model = self.seeded(|| {
            let model = model()?;
            // Burn draws parameters when they are first read; reading the table draws them now. Stage 3
            // draws them on the first rank, one at a time.
            let moves = self.device != self.host;
            if self.arguments.zero < 3 || self.arguments.tp > 1 || moves {
                ParameterTable::of(&model)?;
            }
            Ok(placed(model, self.host, self.device))
        })?;
        let data = Batches::new(self.arguments, self.corpus, &self.groups.data)?;
        if self.arguments.audit {
            self.audit(&model, &data)?;
        }
        let context = (self.arguments, self.groups, self.device);
        let (training, model) = Unpiped::new(model, context)?;
        self.run(training, model, data)
    }

    /// The layers dealt out to stages.
    fn piped<P: DealtPart, I: Iterator<Item = Result<P>>>(
        &self,
        links: PipelineLinks,
        products: &DeferredProducts,
        parts: impl Fn() -> Result<I>,
    ) -> Result<Report> {
        let plan = self.arguments.plan()?;
        let plan = plan.expect("invariant: links are made for a pipeline");
        let recompute = match self.arguments.recompute {
            true => Recompute::Blocks,
            false => Recompute::Nothing,
        };
        let runtime = PipelineRuntime::new(&plan, links, self.device)?.recompute(recompute);
        let cut = partition(&self.config.part_sizes(), plan.num_stages())?;
        let own = runtime.stages();
        let stages = self.seeded(|| {
            let stages = BlockStage::deal(parts()?, &cut, &own)?.into_iter();
            Ok(stages
                .map(|stage| placed(stage, self.host, self.device))
                .map(|stage| stage.with_deferred_products(products))
                .collect())
        })?;
        let pipeline = self.groups.pipeline.as_ref();
        let context = PipedContext {
            arguments: self.arguments,
            groups: self.groups,
            pipeline: pipeline.expect("invariant: links are made with them"),
            everyone: &self.everyone,
            config: self.config,
            cut: &cut,
            device: self.device,
        };
        let (training, stages) = Piped::new(stages, runtime, context)?;
        self.run(
            training,
            stages,
            Batches::new(self.arguments, self.corpus, &self.groups.data)?,
        )
    }

    /// Makes a model of random parameters, one rank after the other.
    fn seeded<T>(&self, model: impl Fn() -> Result<T>) -> Result<T> {
        in_turn(&self.everyone, || {
            self.host.seed(self.arguments.seed);
            model()
        })
    }

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

    fn run<T: Training>(&self, training: T, model: T::Model, data: Batches<'_>) -> Result<Report> {
        let Self {
            world,
            arguments,
            everyone,
            groups,
            ..
        } = self;
        let before = groups.sent();
        let mut trainer = Trainer {
            arguments,
            data,
            training,
            groups,
        };
        let progress = Progress::new(world.rank(), arguments.steps);
        let run = trainer.run(model, &progress, || groups.sent() - before)?;
        progress.end();
        let sent = groups.sent() - before;
        if let Some(folder) = &arguments.trace {
            run.traced.write(folder, arguments, (*world, everyone))?;
        }
        let peak_rss = peak_rss_bytes();
        // From here on parameters are not sharded any more.
        let unsharded = run.model.materialize();
        let formula = trainer.training.formula(&unsharded)?;
        let run = Run {
            model: trainer.training.whole(&unsharded)?,
            losses: run.losses,
            step_seconds: run.step_seconds,
            traced: run.traced,
        };
        let report = report(&run, arguments, everyone, (sent, formula), peak_rss)?;
        if world.rank() == 0 {
            if let Some(path) = &arguments.json {
                report.write_json(path)?;
            }
            println!("{report}");
            let (seq, seed) = (arguments.seq, arguments.seed);
            // Text grows by a letter at a time: on other devices each length would be a kernel of its own.
            let model = placed(run.model, self.device, self.host);
            let text = sample(&model, b"pub fn ", 160, seq, seed, self.host);
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

/// A module where `to` is.
fn placed<M: Module>(module: M, from: &Device, to: &Device) -> M {
    match from == to {
        true => module,
        false => module.fork(to),
    }
}

struct Trainer<'a, T> {
    arguments: &'a Arguments,
    data: Batches<'a>,
    training: T,
    groups: &'a RankGroups,
}

struct Run<M> {
    model: M,
    losses: Vec<f32>,
    step_seconds: Vec<f64>,
    traced: Traced,
}

impl<T: Training> Trainer<'_, T> {
    fn run(
        &mut self,
        mut model: T::Model,
        progress: &Progress,
        bytes_sent: impl Fn() -> u64,
    ) -> Result<Run<T::Model>> {
        let mut losses = Vec::with_capacity(self.arguments.steps);
        let mut step_seconds = Vec::with_capacity(self.arguments.steps);
        let mut traced = Traced::default();
        let tokens = (self.arguments.batch * self.arguments.seq) as f64;
        for step in 0..self.arguments.steps {
            let start = Instant::now();
            traced.begin();
            let micro_batches = self.data.micro_batches(step)?;
            let (loss, stepped) = self.training.step(model, &micro_batches)?;
            model = stepped;
            let loss = self.mean_loss(&loss)?;
            traced.end(self.training.actions());
            losses.push(loss);
            let seconds = start.elapsed().as_secs_f64();
            step_seconds.push(seconds);
            progress.show(step, loss, tokens / seconds, bytes_sent());
        }
        Ok(Run {
            model,
            losses,
            step_seconds,
            traced,
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
    (sent, formula): (u64, u64),
    peak_rss: u64,
) -> Result<Report> {
    let ranks = metrics.size();
    let total_sent = metrics.all_reduce_values(vec![sent], ReduceOp::Sum)?[0];
    let per_rank = |bytes: u64| bytes as f64 / ranks as f64;
    let step_seconds = median(run.step_seconds.clone());
    let rss = metrics.all_gather_values(vec![peak_rss])?;
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
