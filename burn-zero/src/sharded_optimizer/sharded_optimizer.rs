//! [`ShardedOptimizer`]: ZeRO stages 1 and 2.

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::tensor::{Gradients, Tensor};
use burn_dist::data_parallel::{BucketShard, DataParallel, DataParallelConfig, clip_factor};
use burn_dist::fused::GradientScale;
use burn_dist::{DistError, ProcessGroup, Result};

use super::ShardedOptimizerConfig;
use super::model_values::CastTrained;
use super::step_pieces::{PieceGradient, Pieces};
use super::whole_parameters::owners;
use crate::shardable_optimizer::BuiltOptimizer;
use crate::{LossScale, ModelParallel, ShardLayout, ShardableOptimizer};

/// An optimizer whose state is split over the ranks of a group, for any module, without touching its
/// code: ZeRO stages 1 and 2 (arXiv 1910.02054, sections 5.1 and 5.2).
///
/// *What is replicated:* parameters. *What is split:* the batch, the optimizer's state, and reduced
/// gradients: a bucket's full gradient is freed as soon as it is reduced. *What moves* per step and
/// rank, S being the bytes of all parameters: `S(n-1)/n` to reduce gradients, while the backward pass
/// still runs, and `S(n-1)/n` to gather parameters. For an optimizer that needs whole parameters,
/// gradients are reduced on all ranks (`2S(n-1)/n`), each rank sends the parameters that it owns to all
/// others (`S(n-1)/n` on average), and only the state is split.
///
/// The numbers are those of [`DataParallel`] with the same optimizer, bit for bit.
///
/// ```no_run
/// # use burn::{nn::Linear, optim::AdamWConfig, tensor::Tensor};
/// # use burn_dist::{ProcessGroup, Result};
/// # use burn_zero::ShardedOptimizer;
/// # fn example(group: ProcessGroup, model: Linear, batch: Tensor<2>) -> Result<()> {
/// let optimizer = AdamWConfig::new().build();
/// let (mut sharded, mut model) = ShardedOptimizer::wrap(model, optimizer, &group)?;
/// let loss = model.forward(batch).mean();
/// model = sharded.step(1e-3, model, loss.backward())?;
/// # Ok(()) }
/// ```
pub struct ShardedOptimizer {
    pub(super) parallel: DataParallel,
    pub(super) optimizer: ModuleOptimizer,
    /// Where the optimizer takes a factor for gradients into its own pass.
    scales: Option<Vec<GradientScale>>,
    layout: ShardLayout,
    pub(super) ownership: Ownership,
    pub(super) settings: Settings,
    /// Shards of micro-steps that were reduced on their own.
    accumulated: Option<Vec<BucketShard>>,
    micro_steps: usize,
    pub(super) last_norm: Option<f64>,
}

/// What a step needs of the configuration.
pub(super) struct Settings {
    average_micro_steps: bool,
    pub(super) max_grad_norm: Option<f64>,
    pub(super) loss_scale: Option<LossScale>,
    pub(super) model_parallel: ModelParallel,
}

/// What this rank steps.
pub(super) enum Ownership {
    /// Its equal part of every unit.
    Pieces(Box<Pieces>),
    /// Whole parameters; the index of each parameter's owner, by its number.
    Whole(Vec<usize>),
}

impl std::fmt::Debug for ShardedOptimizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardedOptimizer")
            .field("parallel", &self.parallel)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

impl ShardedOptimizer {
    /// Wraps a training model and an optimizer with the default configuration. Collective.
    ///
    /// # Errors
    /// As [`wrap_with`](Self::wrap_with).
    pub fn wrap<M: Module>(
        model: M,
        optimizer: impl Into<ShardableOptimizer>,
        group: &ProcessGroup,
    ) -> Result<(Self, M)> {
        Self::wrap_with(model, optimizer, group, ShardedOptimizerConfig::default())
    }

    /// Wraps the model as [`DataParallel::wrap_with`] does and divides the optimizer's state. An
    /// [`ElementWise`](crate::ElementWise) optimizer is cut in equal parts; any other one steps whole
    /// parameters, dealt out by size. Collective.
    ///
    /// # Errors
    /// As [`DataParallel::wrap_with`]; [`DistError::Config`] for an optimizer that has stepped before, and
    /// for settings that need an element-wise one.
    pub fn wrap_with<M: Module>(
        model: M,
        optimizer: impl Into<ShardableOptimizer>,
        group: &ProcessGroup,
        config: ShardedOptimizerConfig,
    ) -> Result<(Self, M)> {
        let BuiltOptimizer {
            optimizer,
            element_wise,
            scales,
        } = optimizer.into().build();
        config.check(&optimizer, element_wise, group)?;
        let parallel = DataParallelConfig {
            bucket_sizes: config.bucket_sizes,
            average_micro_steps: config.average_micro_steps,
            sum_ranks: config.sum_ranks,
            shard_gradients: element_wise,
        };
        let (parallel, model) = DataParallel::wrap_with(model, group, parallel)?;
        if config.max_grad_norm.is_some() || config.loss_scale.is_some() {
            for spec in parallel.parameters().specs() {
                config.model_parallel.check(&spec.name, &spec.placements)?;
            }
        }
        let units = parallel.plan().buckets().iter().map(|bucket| {
            let slots = bucket.slots.iter();
            slots.map(|slot| (slot.parameter, slot.len)).collect()
        });
        let layout = ShardLayout::new(units.collect(), group.size());
        let ownership = match element_wise {
            true => {
                let pieces = Pieces::new(&model, &parallel, &layout, &config)?;
                Ownership::Pieces(Box::new(pieces))
            }
            false => Ownership::Whole(owners(parallel.parameters(), group.size())),
        };
        let sharded = Self {
            parallel,
            optimizer,
            scales,
            layout,
            ownership,
            settings: Settings {
                average_micro_steps: config.average_micro_steps,
                max_grad_norm: config.max_grad_norm,
                loss_scale: config.loss_scale,
                model_parallel: config.model_parallel,
            },
            accumulated: None,
            micro_steps: 0,
            last_norm: None,
        };
        let model = match config.mixed_precision.param {
            Some(dtype) => model.map(&mut CastTrained(dtype)),
            None => model,
        };
        Ok((sharded, model))
    }

    /// The ranks.
    pub fn group(&self) -> &ProcessGroup {
        self.parallel.group()
    }

    /// The wrapped model's parameters, hooks and buckets.
    pub fn data_parallel(&self) -> &DataParallel {
        &self.parallel
    }

    /// Which rank holds what; prints as a map. For whole parameters, see [`owner`](Self::owner).
    pub fn layout(&self) -> &ShardLayout {
        &self.layout
    }

    /// The index of the rank that steps a parameter as a whole, by its number in
    /// [`DataParallel::parameters`]; `None` if parameters are cut.
    pub fn owner(&self, parameter: usize) -> Option<usize> {
        match &self.ownership {
            Ownership::Pieces(_) => None,
            Ownership::Whole(owners) => owners.get(parameter).copied(),
        }
    }

    /// Elements whose optimizer state this rank keeps, padding apart.
    pub fn num_elements(&self) -> usize {
        match &self.ownership {
            Ownership::Pieces(pieces) => pieces.num_elements(),
            Ownership::Whole(owners) => {
                let specs = self.parallel.parameters().specs().iter();
                let own = specs
                    .zip(owners)
                    .filter(|(spec, owner)| spec.trainable && **owner == self.group().index());
                own.map(|(spec, _)| spec.num_elements()).sum()
            }
        }
    }

    /// The optimizer, with the state of what this rank owns.
    pub fn optimizer(&self) -> &ModuleOptimizer {
        &self.optimizer
    }

    /// As [`DataParallel::no_sync`]: the gradients of a micro-step stay on this rank until the step.
    pub fn no_sync(&self, backward: impl FnOnce() -> Gradients) {
        self.parallel.no_sync(backward);
    }

    /// Reduces the gradients of a micro-step at once and adds this rank's part to those before: no whole
    /// gradient outlives its micro-step, at the price of a reduction for each. End the step with
    /// [`step`](Self::step). Collective.
    ///
    /// # Errors
    /// As [`step`](Self::step); [`DistError::Config`] for an optimizer that steps whole parameters.
    pub fn accumulate(&mut self, gradients: Gradients) -> Result<()> {
        self.accumulate_from(Some(gradients))
    }

    /// `None`: gradients were collected.
    pub(super) fn accumulate_from(&mut self, gradients: Option<Gradients>) -> Result<()> {
        if matches!(self.ownership, Ownership::Whole(_)) {
            return Err(DistError::config(
                format!(
                    "rank {}: an optimizer that steps whole parameters cannot add up parts of gradients",
                    self.group().rank()
                ),
                "use no_sync for micro-steps",
            ));
        }
        let pending = self.parallel.pending_micro_steps();
        if self.settings.average_micro_steps && pending > 0 {
            return Err(DistError::config(
                format!(
                    "rank {}: {pending} micro-steps of no_sync and others of accumulate in one mean",
                    self.group().rank()
                ),
                "use either of them in a step, or leave average_micro_steps out",
            ));
        }
        let shards = self.parallel.sync_shards(gradients)?;
        self.micro_steps += 1;
        self.accumulated = Some(match self.accumulated.take() {
            None => shards,
            Some(sums) => sums.into_iter().zip(shards).map(add).collect(),
        });
        Ok(())
    }

    /// The loss to run backward from: multiplied by the loss scale, if there is one.
    pub fn scale<const D: usize>(&self, loss: Tensor<D>) -> Tensor<D> {
        match &self.settings.loss_scale {
            Some(loss_scale) => loss_scale.scale(loss),
            None => loss,
        }
    }

    /// The loss scale as it is now.
    pub fn loss_scale(&self) -> Option<&LossScale> {
        self.settings.loss_scale.as_ref()
    }

    /// The norm of the last step's gradients before they were clipped, if they were to be; the same on
    /// every rank.
    pub fn last_grad_norm(&self) -> Option<f64> {
        self.last_norm
    }

    /// Reduces what the backward pass left, steps what this rank owns, and gives every rank all new
    /// parameters. Collective. Parameters that no rank used stay as they are.
    ///
    /// # Errors
    /// A failure of the group, also one met during the backward pass; [`DistError::Config`] for a model
    /// that is not the wrapped one. The model is lost then: parameters of the ranks may differ.
    pub fn step<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        model: M,
        gradients: Gradients,
    ) -> Result<M> {
        self.step_from(lr.into(), model, Some(gradients), None)
    }

    /// `None`: gradients were delivered. `factor`: what they are multiplied by first.
    pub(super) fn step_from<M: Module>(
        &mut self,
        lr: ModuleLearningRate,
        model: M,
        gradients: Option<Gradients>,
        factor: Option<f64>,
    ) -> Result<M> {
        match &self.ownership {
            Ownership::Pieces(_) => self.step_pieces(lr, model, gradients, factor),
            Ownership::Whole(_) => self.step_whole(lr, model, gradients, factor),
        }
    }

    fn step_pieces<M: Module>(
        &mut self,
        lr: ModuleLearningRate,
        model: M,
        gradients: Option<Gradients>,
        factor: Option<f64>,
    ) -> Result<M> {
        let shards = match self.accumulated.is_some() {
            true => {
                self.accumulate_from(gradients)?;
                let mut shards = self.accumulated.take().unwrap_or_default();
                let micro_steps = std::mem::take(&mut self.micro_steps);
                if self.settings.average_micro_steps {
                    let values = shards.iter_mut().map(|shard| &mut shard.values);
                    values.for_each(|values| values.divide(micro_steps));
                }
                shards
            }
            false => self.parallel.sync_shards(gradients)?,
        };
        let Ownership::Pieces(pieces) = &mut self.ownership else {
            unreachable!("invariant: asked before")
        };
        let parallel = &self.parallel;
        let model_parallel = &self.settings.model_parallel;
        let mut gradients = pieces.gradients(shards, parallel);
        let multiply = |gradients: Vec<PieceGradient>, factor: f64| {
            let scaled = gradients.into_iter();
            scaled
                .map(|(number, gradient)| (number, gradient.mul_scalar(factor)))
                .collect()
        };
        if let Some(factor) = factor {
            gradients = multiply(gradients, factor);
        }
        // What the optimizer multiplies by in its own pass: the last factor.
        let mut last = None;
        if let Some(loss_scale) = &mut self.settings.loss_scale {
            let squares = pieces.sum_of_squares(&gradients, parallel, model_parallel)?;
            let Some(factor) = loss_scale.decide(squares.num_not_finite() > 0) else {
                return Ok(model);
            };
            match self.settings.max_grad_norm {
                Some(_) => gradients = multiply(gradients, factor),
                None => last = Some(factor),
            }
        }
        if let Some(max_norm) = self.settings.max_grad_norm {
            let norm = pieces
                .sum_of_squares(&gradients, parallel, model_parallel)?
                .norm();
            self.last_norm = Some(norm);
            last = clip_factor(norm, max_norm)?;
        }
        let scales = self.scales.iter().flatten();
        match (last, &self.scales) {
            (Some(factor), None) => gradients = multiply(gradients, factor),
            (factor, _) => scales.clone().for_each(|s| s.set(factor.unwrap_or(1.0))),
        }
        let optimizer = &mut self.optimizer;
        let stepped = pieces.step(lr, model, gradients, optimizer, parallel, &self.layout);
        scales.for_each(|scale| scale.set(1.0));
        stepped
    }
}

/// Adds a micro-step's shard to those before.
fn add((mut sum, shard): (BucketShard, BucketShard)) -> BucketShard {
    sum.values.put(0, shard.values, false);
    for (used, also) in sum.used.iter_mut().zip(shard.used) {
        *used |= also;
    }
    sum
}
