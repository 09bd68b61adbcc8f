//! [`Distributed`]: the strategy that a trainer names.

use std::sync::Arc;

use burn::tensor::Device;
use burn::train::{
    InferenceStep, LearnerModel, SupervisedLearningStrategy, TrainStep, TrainingStrategy,
};

use super::{BatchSplit, GradientReduction, LastRound, Parallelism, RankOutput, StepSettings};
use crate::data_parallel::{BucketSizes, clip_factor};
use crate::error::{DistError, Result};
use crate::group::ProcessGroup;
use crate::world::{WorldOptions, launched_rank};

/// Gives a rank's model what it needs to know of the ranks.
pub(super) type Prepare<M> = Arc<dyn Fn(M, &ProcessGroup) -> M + Send + Sync>;

/// Trains on many ranks what Burn's trainer trains on one device, with one line:
///
/// ```no_run
/// # use burn::data::dataloader::DataLoader;
/// # use burn::train::{Learner, LearnerModel, LearningResult, SupervisedTraining, TrainStep, InferenceStep};
/// # use std::sync::Arc;
/// use burn_dist::train::Distributed;
/// # fn example<M: LearnerModel>(
/// #     train: Arc<dyn DataLoader<<M as TrainStep>::Input>>,
/// #     valid: Arc<dyn DataLoader<<M as InferenceStep>::Input>>,
/// #     learner: Learner<M>,
/// # ) -> LearningResult<M>
/// # where
/// #     <M as TrainStep>::Output: burn_dist::train::RankOutput,
/// #     <M as InferenceStep>::Output: burn_dist::train::RankOutput,
/// # {
/// SupervisedTraining::new("artifacts", train, valid)
///     .num_epochs(10)
///     .with_training_strategy(Distributed::new(4).into())
///     .launch(learner)
/// # }
/// ```
///
/// Without a launcher, `new(n)` starts `n` ranks as threads of this process: the program runs once, around
/// them. Under a launcher (`burnrun`, torchrun, Slurm, mpirun) each process is a rank, and the launcher's
/// number counts; the program runs on every rank, so guard what comes after `launch` with
/// [`is_first_rank`](Self::is_first_rank).
///
/// *What is replicated:* the model and the optimizer, unless a [`parallelism`](Self::parallelism) splits them.
/// *What is split:* the batches, for training and validation. *What moves* per optimizer step and rank: `2S(n-1)/n` bytes of gradients, `S` being those of all
/// parameters, once however many micro-steps there are; per batch its output, to the first rank, which
/// computes metrics, shows the dashboard and writes files.
///
/// Errors and panics of any rank end training on all: `LearningResult::error` has the cause, and so has
/// the error output.
pub struct Distributed<M> {
    pub(super) ranks: usize,
    pub(super) options: WorldOptions,
    pub(super) device: Option<Device>,
    pub(super) split: Option<BatchSplit>,
    pub(super) last_round: LastRound,
    pub(super) seed: Option<u64>,
    pub(super) settings: StepSettings,
    pub(super) prepare: Option<Prepare<M>>,
    pub(super) parallelism: Option<Arc<dyn Parallelism<M>>>,
}

impl<M> Clone for Distributed<M> {
    fn clone(&self) -> Self {
        Self {
            device: self.device.clone(),
            prepare: self.prepare.clone(),
            parallelism: self.parallelism.clone(),
            ..*self
        }
    }
}

impl<M> std::fmt::Debug for Distributed<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Distributed")
            .field("ranks", &self.ranks)
            .field("split", &self.split)
            .field("last_round", &self.last_round)
            .finish_non_exhaustive()
    }
}

impl<M> Distributed<M> {
    /// Data parallelism over `ranks` threads, or over the launcher's processes.
    pub fn new(ranks: usize) -> Self {
        Self {
            ranks,
            options: WorldOptions::default(),
            device: None,
            split: None,
            last_round: LastRound::default(),
            seed: None,
            settings: StepSettings::default(),
            prepare: None,
            parallelism: None,
        }
    }

    /// Whether this process is the one that writes files and prints: always without a launcher.
    ///
    /// # Errors
    /// [`DistError::Environment`] for launcher's variables that contradict each other.
    pub fn is_first_rank() -> Result<bool> {
        launched_rank().map(|rank| rank.unwrap_or(0) == 0)
    }

    /// Timeouts and how ranks are connected.
    pub fn world_options(mut self, options: WorldOptions) -> Self {
        self.options = options;
        self
    }

    /// This process's device; by default that of the learner's model. Activations are recomputed in the backward
    /// pass if the model was made on a device with `gradient_checkpointing()`, and only then: the trainer's own
    /// setting does not reach a strategy, nor can a model be changed to it.
    pub fn device(mut self, device: Device) -> Self {
        self.device = Some(device);
        self
    }

    /// How batches are divided: by default [`BatchSplit::Batches`] for ranks that are threads, and
    /// [`BatchSplit::Slices`] for processes, if there are several.
    pub fn batch_split(mut self, split: BatchSplit) -> Self {
        self.split = Some(split);
        self
    }

    /// What ranks do that have no batch left: by default [`LastRound::WithoutInput`].
    pub fn last_round(mut self, last_round: LastRound) -> Self {
        self.last_round = last_round;
        self
    }

    /// Seeds the device's random generator on each rank that is a process, differently: dropout masks of ranks
    /// then differ. Ranks that are threads share their device's generator.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Scales gradients down to a norm of at most `max_norm` over all parameters of the model together.
    pub fn clip_grad_norm(mut self, max_norm: f64) -> Self {
        self.settings.max_grad_norm = Some(max_norm);
        self
    }

    /// Calls `prepare` with each rank's model and the ranks, before anything else: for layers that talk to other
    /// ranks in their forward pass.
    pub fn prepare(
        mut self,
        prepare: impl Fn(M, &ProcessGroup) -> M + Send + Sync + 'static,
    ) -> Self {
        self.prepare = Some(Arc::new(prepare));
        self
    }

    /// Shares more than the batches among the ranks: `burn_zero::Zero` splits the optimizer's state, gradients
    /// and parameters.
    pub fn parallelism(mut self, parallelism: impl Parallelism<M> + 'static) -> Self
    where
        M: LearnerModel,
    {
        self.parallelism = Some(Arc::new(parallelism));
        self
    }

    /// Mean or sum over ranks.
    pub fn gradient_reduction(mut self, reduction: GradientReduction) -> Self {
        self.settings.reduction = reduction;
        self
    }

    /// Sizes of gradient buckets.
    pub fn bucket_sizes(mut self, sizes: BucketSizes) -> Self {
        self.settings.bucket_sizes = Some(sizes);
        self
    }

    pub(super) fn check(&self) -> Result<()> {
        if let Some(max_norm) = self.settings.max_grad_norm {
            clip_factor(0.0, max_norm)?;
        }
        match self.ranks {
            0 => Err(DistError::config(
                "training on 0 ranks",
                "give at least 1 to Distributed::new",
            )),
            _ => Ok(()),
        }
    }
}

impl<M: LearnerModel> From<Distributed<M>> for TrainingStrategy<M>
where
    <M as TrainStep>::Output: RankOutput,
    <M as InferenceStep>::Output: RankOutput,
{
    fn from(strategy: Distributed<M>) -> Self {
        let strategy: Arc<dyn SupervisedLearningStrategy<M>> = Arc::new(strategy);
        Self::Custom(strategy)
    }
}
