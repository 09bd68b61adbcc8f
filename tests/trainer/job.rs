//! A small trainer of Burn's, and what it logs.
#![allow(unreachable_pub)]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{BatchNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::tensor::{DType, Device, Tensor};
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::{
    ClassificationOutput, InferenceStep, Learner, LearningResult, SupervisedTraining, TrainOutput,
    TrainStep, TrainingStrategy,
};
use burn_dist::ProcessGroup;
use burn_dist::batch_norm::SyncBatchNorm;

use crate::items::{Batch, CLASSES, FEATURES, Items, Items2Batch};
use crate::metrics::{CountItems, Enough, Log};

#[derive(Module, Debug)]
pub struct Net {
    first: Linear,
    norm: Option<SyncBatchNorm>,
    second: Linear,
    /// A forward pass of training over this item panics.
    #[module(skip)]
    panics_at: Option<usize>,
    /// As long as the program runs.
    #[module(skip)]
    hangs_at: Option<usize>,
    /// Of inputs: as the strategy makes parameters.
    #[module(skip)]
    dtype: DType,
}

impl Net {
    fn new(job: &Job, device: &Device) -> Self {
        Self {
            first: LinearConfig::new(FEATURES, 16).init(device),
            norm: job
                .batch_norm
                .then(|| BatchNormConfig::new(16).init(device).into()),
            second: LinearConfig::new(16, CLASSES).init(device),
            panics_at: job.panics_at,
            hangs_at: job.hangs_at,
            dtype: job.dtype,
        }
    }

    /// Not the learner's.
    pub fn with_another_head(mut self) -> Self {
        self.second = LinearConfig::new(16, CLASSES).init(&self.second.weight.device());
        self
    }

    /// Normalizes with the ranks of a group.
    pub fn over(mut self, group: &ProcessGroup) -> Self {
        self.norm = self.norm.map(|norm| norm.over(group));
        self
    }

    fn classify(&self, batch: Batch) -> ClassificationOutput {
        let hidden = self.first.forward(batch.inputs.cast(self.dtype));
        let hidden = match &self.norm {
            Some(norm) => {
                let maps = norm.forward(hidden.unsqueeze_dim::<3>(2));
                maps.expect("ranks normalize together").squeeze_dim(2)
            }
            None => hidden,
        };
        let output = self.second.forward(hidden.tanh()).cast(DType::F32);
        let loss = CrossEntropyLossConfig::new().init(&output.device());
        let loss = loss.forward(output.clone(), batch.targets.clone());
        ClassificationOutput::new(loss, output, batch.targets)
    }
}

impl TrainStep for Net {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        if let Some(item) = self.panics_at {
            assert!(!batch.numbers.contains(&item), "item {item} is too much");
        }
        if let Some(item) = self.hangs_at
            && batch.numbers.contains(&item)
        {
            // Longer than any test.
            std::thread::sleep(Duration::from_secs(3600));
        }
        let output = self.classify(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Net {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        self.classify(batch)
    }
}

/// A training of the small net.
#[derive(Debug, Clone)]
pub struct Job {
    pub train: Items,
    pub valid: Items,
    pub batch: usize,
    pub epochs: usize,
    pub accumulation: Option<usize>,
    pub batch_norm: bool,
    pub workers: usize,
    pub panics_at: Option<usize>,
    pub hangs_at: Option<usize>,
    pub stop_after: Option<usize>,
    /// The epoch with which early stopping has seen enough.
    pub enough: Option<usize>,
    pub artifacts: Option<PathBuf>,
    pub resume: Option<usize>,
    pub decay: bool,
    /// Of inputs.
    pub dtype: DType,
    /// Of parameters.
    pub parameters: DType,
    /// The backward pass makes activations again.
    pub recompute: bool,
    /// The first layer is not trained.
    pub frozen: bool,
}

impl Job {
    pub fn new(train: usize, valid: usize, batch: usize) -> Self {
        let items = |count| Items {
            count,
            unreadable: None,
        };
        Self {
            train: items(train),
            valid: items(valid),
            batch,
            epochs: 2,
            accumulation: None,
            batch_norm: false,
            workers: 0,
            panics_at: None,
            hangs_at: None,
            stop_after: None,
            enough: None,
            artifacts: None,
            resume: None,
            decay: false,
            dtype: DType::F32,
            parameters: DType::F32,
            recompute: false,
            frozen: false,
        }
    }

    /// That writes checkpoints to a folder, at a learning rate that shows where it goes on.
    pub fn with_checkpoints(mut self, folder: &Path, epochs: usize, resume: Option<usize>) -> Self {
        self.decay = true;
        self.epochs = epochs;
        self.resume = resume;
        self.artifacts = Some(folder.to_path_buf());
        self
    }

    pub fn accumulating(mut self, micro_steps: Option<usize>) -> Self {
        self.accumulation = micro_steps;
        self
    }
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub log: Vec<String>,
    pub bits: Vec<Vec<u8>>,
    pub error: Option<String>,
    pub interrupted: Option<String>,
}

impl Outcome {
    /// All parameters, one after the other.
    pub fn values(&self) -> Vec<f32> {
        let bytes = self.bits.iter().flat_map(|bits| bits.chunks_exact(4));
        bytes
            .map(|b| f32::from_ne_bytes(b.try_into().expect("four")))
            .collect()
    }

    /// Items that the metrics of a split counted in an epoch.
    pub fn items(&self, split: &str, epoch: usize) -> Option<usize> {
        let start = format!("{split} {epoch}: ");
        let line = self.log.iter().rfind(|line| line.starts_with(&start))?;
        line.rsplit(" | ").next()?.parse().ok()
    }
}

fn loader(items: &Items, job: &Job, seed: Option<u64>) -> Arc<dyn DataLoader<Batch>> {
    let builder = DataLoaderBuilder::new(Items2Batch)
        .batch_size(job.batch)
        .num_workers(job.workers);
    match seed {
        Some(seed) => builder.shuffle(seed),
        None => builder,
    }
    .build(items.clone())
}

struct Cast(DType);

impl ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| Tensor::from_inner(tensor.inner().cast(self.0)).require_grad())
    }
}

/// Of all floats, also those that are not trained.
fn bits_of(net: &Net) -> Vec<Vec<u8>> {
    struct Bits(Vec<Vec<u8>>);
    impl ModuleVisitor for Bits {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.val().into_data().as_bytes().to_vec());
        }
    }
    let mut bits = Bits(Vec::new());
    net.visit(&mut bits);
    bits.0
}

/// Trains with Burn's trainer, on one device or with a strategy.
pub fn train(job: &Job, strategy: Option<TrainingStrategy<Net>>) -> Outcome {
    train_with(job, AdamWConfig::new().init(), strategy)
}

/// As [`train`], with an optimizer.
pub fn train_with(
    job: &Job,
    optimizer: ModuleOptimizer,
    strategy: Option<TrainingStrategy<Net>>,
) -> Outcome {
    static SEEDED: Mutex<()> = Mutex::new(());
    let device = match job.recompute {
        true => Device::flex().autodiff().gradient_checkpointing(),
        false => Device::flex().autodiff(),
    };
    let net = {
        let _alone = SEEDED.lock().expect("not poisoned");
        device.seed(7);
        let net = Net::new(job, &device);
        let net = match job.parameters {
            DType::F32 => net,
            dtype => net.map(&mut Cast(dtype)),
        };
        let net = match job.frozen {
            true => Net {
                first: net.first.no_grad(),
                ..net
            },
            false => net,
        };
        // Burn draws parameters when they are first read.
        bits_of(&net);
        net
    };
    let folder = tempfile::tempdir().expect("a folder");
    let artifacts = job.artifacts.clone();
    let artifacts = artifacts.unwrap_or_else(|| folder.path().to_path_buf());
    let log = Log::default();
    let training = SupervisedTraining::new(
        artifacts,
        loader(&job.train, job, Some(11)),
        loader(&job.valid, job, None),
    );
    let interrupter = training.interrupter();
    let count = CountItems {
        items: 0,
        stop: None,
    };
    let stop = job.stop_after.map(|limit| (limit, interrupter));
    let mut training = training
        .with_application_logger(None)
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .metric_train(CountItems {
            stop,
            ..count.clone()
        })
        .metric_valid(count)
        .with_metric_logger(log.clone())
        .num_epochs(job.epochs);
    if let Some(accumulation) = job.accumulation {
        training = training.grads_accumulation(accumulation);
    }
    if job.artifacts.is_some() {
        training = training.with_default_checkpointers();
    }
    if let Some(epoch) = job.enough {
        training = training.early_stopping(Enough(epoch));
    }
    if let Some(epoch) = job.resume {
        training = training.checkpoint(epoch);
    }
    if let Some(strategy) = strategy {
        training = training.with_training_strategy(strategy);
    }
    let learner = match job.decay {
        true => Learner::new(
            net,
            optimizer,
            burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig::new(0.05, 0.9)
                .init()
                .expect("a valid decay"),
        ),
        false => Learner::new(net, optimizer, 0.05),
    };
    let LearningResult {
        model,
        interrupted,
        error,
        ..
    } = training.launch(learner);
    let log = log.0.lock().expect("not poisoned").clone();
    Outcome {
        log,
        bits: bits_of(&model),
        error: error.map(|error| error.to_string()),
        interrupted: interrupted.map(|stop| stop.reason.unwrap_or_default()),
    }
}
