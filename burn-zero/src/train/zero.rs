//! [`Zero`]: ZeRO for Burn's trainer.

use std::sync::Arc;

use burn::tensor::DType;
use burn::train::LearnerModel;
use burn_dist::data_parallel::ParameterTable;
use burn_dist::train::{GradientReduction, Parallelism, RankLearner, RankStart, Replicas};
use burn_dist::{DistError, Result};

use super::fully_sharded_learner::FullyShardedLearner;
use super::optimizer_probe::check_same_optimizer;
use super::sharded_learner::ShardedLearner;
use crate::{
    FullyShard, MixedPrecisionPolicy, ShardableOptimizer, ShardedOptimizerConfig, ZeroStage,
};

type Configure<T> = Arc<dyn Fn(T) -> T + Send + Sync>;

/// ZeRO and mixed precision for Burn's trainer: for
/// [`Distributed::parallelism`](burn_dist::train::Distributed::parallelism).
///
/// A `Learner` does not give its optimizer away, and one that is made for whole parameters could not be cut. So the
/// optimizer is named here once more; that it is the learner's is tried out on every parameter, in eight steps, before
/// training starts. Checkpoints are those of one device: they load into a plain trainer, and one of a plain trainer
/// loads here.
///
/// ```no_run
/// # use burn::optim::AdamWConfig;
/// # use burn::train::{LearnerModel, TrainingStrategy, InferenceStep, TrainStep};
/// use burn_dist::train::Distributed;
/// use burn_zero::Zero;
/// # fn example<M: LearnerModel>() -> TrainingStrategy<M>
/// # where
/// #     <M as TrainStep>::Output: burn_dist::train::RankOutput,
/// #     <M as InferenceStep>::Output: burn_dist::train::RankOutput,
/// # {
/// Distributed::new(4)
///     .parallelism(Zero::stage3(AdamWConfig::new()))
///     .into()
/// # }
/// ```
///
/// A model's own `TrainStep::optimize` is not called; if it does more than a step, the trial says so.
#[derive(Clone)]
pub struct Zero {
    stage: ZeroStage,
    optimizer: ShardableOptimizer,
    precision: MixedPrecisionPolicy,
    no_sync: bool,
    sharded_optimizer: Option<Configure<ShardedOptimizerConfig>>,
    fully_shard: Option<Configure<FullyShard>>,
}

impl std::fmt::Debug for Zero {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Zero")
            .field("stage", &self.stage)
            .field("precision", &self.precision)
            .field("no_sync", &self.no_sync)
            .finish_non_exhaustive()
    }
}

impl Zero {
    /// A stage, for the learner's optimizer. [`ZeroStage::Nothing`] is plain data parallelism, of which
    /// the learner steps its own.
    pub fn new(stage: ZeroStage, optimizer: impl Into<ShardableOptimizer>) -> Self {
        Self {
            stage,
            optimizer: optimizer.into(),
            precision: MixedPrecisionPolicy::default(),
            no_sync: stage <= ZeroStage::OptimizerState,
            sharded_optimizer: None,
            fully_shard: None,
        }
    }

    /// Splits the optimizer's state, of any optimizer: see [`ShardedOptimizer`](crate::ShardedOptimizer). Gradients of
    /// micro-steps are added up on each rank and reduced once in a step.
    pub fn stage1(optimizer: impl Into<ShardableOptimizer>) -> Self {
        Self::new(ZeroStage::OptimizerState, optimizer)
    }

    /// Also gradients: each micro-step reduces its own, and a rank adds up its part of them. For
    /// [`ElementWise`](crate::ElementWise) optimizers.
    pub fn stage2(optimizer: impl Into<ShardableOptimizer>) -> Self {
        Self::new(ZeroStage::Gradients, optimizer)
    }

    /// Also parameters: see [`FullyShard`]. For [`ElementWise`](crate::ElementWise) optimizers. A rank without
    /// a batch runs one again, since every pass gathers parameters: it counts in no gradient, but in running statistics.
    pub fn stage3(optimizer: impl Into<ShardableOptimizer>) -> Self {
        Self::new(ZeroStage::Parameters, optimizer)
    }

    /// In stages 2 and 3: adds up whole gradients of micro-steps on each rank, to reduce them once in a step.
    /// Less is sent, more is held.
    pub fn no_sync(mut self) -> Self {
        self.no_sync = true;
        self
    }

    /// Parameters in fewer bits than those that are stepped: [`MixedPrecisionPolicy::bf16`]. The model casts its
    /// inputs to the type of its parameters. Not f16, whose losses a `TrainStep` would have to scale.
    pub fn mixed_precision(mut self, policy: MixedPrecisionPolicy) -> Self {
        self.precision = policy;
        self
    }

    /// More settings of stages 1 and 2.
    pub fn sharded_optimizer(
        mut self,
        configure: impl Fn(ShardedOptimizerConfig) -> ShardedOptimizerConfig + Send + Sync + 'static,
    ) -> Self {
        self.sharded_optimizer = Some(Arc::new(configure));
        self
    }

    /// More settings of stage 3.
    pub fn fully_shard(
        mut self,
        configure: impl Fn(FullyShard) -> FullyShard + Send + Sync + 'static,
    ) -> Self {
        self.fully_shard = Some(Arc::new(configure));
        self
    }

    fn check(&self, element_wise: bool) -> Result<()> {
        let default = MixedPrecisionPolicy::default();
        if self.stage == ZeroStage::Nothing && self.precision != default {
            return Err(DistError::config(
                "mixed precision keeps master weights, which plain data parallelism has not",
                "use stage1",
            ));
        }
        if self.stage > ZeroStage::OptimizerState && !element_wise {
            return Err(DistError::config(
                format!(
                    "{:?} are to be split, but this optimizer steps whole parameters",
                    self.stage
                ),
                "use stage1, or an element-wise optimizer without clipping of its own, such as AdamWConfig::new()",
            ));
        }
        Ok(())
    }
}

/// Refuses settings that need more than a `TrainStep` does.
fn check_settings(precision: MixedPrecisionPolicy, averages: bool, scales: bool) -> Result<()> {
    if precision.param == Some(DType::F16) || scales {
        return Err(DistError::config(
            "a trainer in f16 or with a loss scale: a TrainStep runs backward itself, so its losses are not scaled",
            "use MixedPrecisionPolicy::bf16()",
        ));
    }
    match averages {
        true => Err(DistError::config(
            "a trainer that averages micro-steps: ranks without a batch, and steps at an epoch's end, have fewer",
            "leave average_micro_steps out: a trainer adds micro-steps up",
        )),
        false => Ok(()),
    }
}

/// What is stepped in pieces must be the learner's own parameters, in a type that is saved as it is stepped.
fn check_model<M: LearnerModel>(start: &RankStart<'_, M>) -> Result<()> {
    let (own, given) = (
        ParameterTable::of_lazy(&start.learner.model())?,
        ParameterTable::of_lazy(&start.model)?,
    );
    let rank = start.group.rank();
    for spec in own.specs().iter().filter(|spec| spec.trainable) {
        if matches!(spec.dtype, DType::F16 | DType::BF16) {
            return Err(DistError::config(
                format!(
                    "rank {rank}: {} is kept in {:?}: a checkpoint would lose what is stepped in f32",
                    spec.name, spec.dtype
                ),
                "build the model in f32 and use Zero::mixed_precision(MixedPrecisionPolicy::bf16())",
            ));
        }
        if given.position(spec.id).is_none() {
            return Err(DistError::config(
                format!(
                    "rank {rank}: Distributed::prepare has put another parameter in the place of {}",
                    spec.name
                ),
                "give layers their groups, and keep their parameters",
            ));
        }
    }
    Ok(())
}

impl<M: LearnerModel> Parallelism<M> for Zero {
    fn reads_optimizer_state(&self) -> bool {
        self.stage != ZeroStage::Nothing
    }

    fn start(&self, start: RankStart<'_, M>) -> Result<Box<dyn RankLearner<M>>> {
        let built = self.optimizer.clone().build();
        self.check(built.element_wise)?;
        if self.stage == ZeroStage::Nothing {
            return Replicas.start(start);
        }
        check_model(&start)?;
        let sum_ranks = start.settings.reduction == GradientReduction::Sum;
        let state = start.optimizer_state.clone();
        check_same_optimizer(start.learner, built.optimizer, state)?;
        let optimizer = self.optimizer.clone();
        if self.stage == ZeroStage::Parameters {
            let settings = FullyShard::new(start.group)
                .mixed_precision(self.precision)
                .sum_ranks(sum_ranks);
            let settings = match &self.fully_shard {
                Some(configure) => configure(settings),
                None => settings,
            };
            let (precision, averages) = settings.of_trainer();
            check_settings(precision, averages, false)?;
            let learner = FullyShardedLearner::start(start, settings, optimizer, self.no_sync)?;
            return Ok(Box::new(learner));
        }
        let default = ShardedOptimizerConfig::default();
        let config = ShardedOptimizerConfig {
            bucket_sizes: start.settings.bucket_sizes.unwrap_or(default.bucket_sizes),
            mixed_precision: self.precision,
            sum_ranks,
            max_grad_norm: start.settings.max_grad_norm,
            ..default
        };
        let config = match &self.sharded_optimizer {
            Some(configure) => configure(config),
            None => config,
        };
        check_settings(
            config.mixed_precision,
            config.average_micro_steps,
            config.loss_scale.is_some(),
        )?;
        let learner = ShardedLearner::start(start, config, optimizer, self.no_sync)?;
        Ok(Box::new(learner))
    }
}
