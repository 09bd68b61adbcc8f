//! [`FullySharded`]: what the training loop holds of a wrapped model.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Gradients, Tensor};
use burn_dist::data_parallel::{clip_factor, scale_gradients};
use burn_dist::{DistError, ProcessGroup, Result};

use super::ShardUnit;
use super::gradient_shards::gradient_pieces;
use super::gradient_sums::GradientSums;
use super::shard_context::ShardContext;
use crate::clip_grad_norm::sum_of_squares;
use crate::{LossScale, NormSum, ShardLayout};

/// Gradients, accumulation and errors of a model that [`FullyShard`](crate::FullyShard) wrapped.
#[derive(Debug)]
pub struct FullySharded {
    pub(super) context: Arc<ShardContext>,
    /// The parameters' own identifiers, by those of their stand-ins.
    ids: HashMap<ParamId, ParamId>,
}

impl FullySharded {
    pub(crate) fn new(context: Arc<ShardContext>, ids: HashMap<ParamId, ParamId>) -> Self {
        Self { context, ids }
    }

    /// The ranks that a parameter is split over.
    pub fn group(&self) -> &ProcessGroup {
        &self.context.groups.shard
    }

    /// The units: first those that are split, in the order of [`layout`](Self::layout), then those of
    /// parameters that stay whole.
    pub fn units(&self) -> &[ShardUnit] {
        &self.context.plan.units
    }

    /// Which rank holds which elements; prints as a map. Parameters are numbered inside each unit.
    pub fn layout(&self) -> &ShardLayout {
        &self.context.plan.layout
    }

    /// Elements that this rank keeps, padding apart.
    pub fn num_elements(&self) -> usize {
        let layout = self.layout();
        let units = 0..layout.num_units();
        let pieces = units.flat_map(|unit| layout.pieces(unit, self.group().index()));
        let split: usize = pieces.map(|piece| piece.place.len()).sum();
        let parameters = self.context.plan.parameters.iter();
        let whole = parameters.filter(|parameter| self.context.plan.is_whole(parameter.unit));
        split
            + whole
                .map(|parameter| parameter.num_elements())
                .sum::<usize>()
    }

    /// How often each unit was gathered so far, in the order of [`units`](Self::units).
    pub fn gathers(&self) -> Vec<u64> {
        self.context.gathers()
    }

    /// Runs a backward pass whose gradients stay on this rank, whole: they are added up and travel with
    /// the next pass outside. It gathers parameters as any pass does. Local but for that.
    ///
    /// Without it each backward pass reduces its gradients, and the caller adds up shards
    /// (`GradientsAccumulator`): more is sent, less is held.
    pub fn no_sync(&self, backward: impl FnOnce() -> Gradients) {
        drop(self.no_sync_collected(backward));
    }

    /// As [`no_sync`](Self::no_sync), for a pass whose gradients somebody else collects, as a `TrainStep` does;
    /// returns what it made, which holds no gradient of a split parameter.
    pub fn no_sync_collected<T>(&self, pass: impl FnOnce() -> T) -> T {
        self.with_flag(|sums| &mut sums.syncing, pass)
    }

    /// Reduces what passes of [`no_sync`](Self::no_sync) have left where no other pass follows: this rank's part of the
    /// mean gradients, as [`gradients`](Self::gradients) gives it. Collective: as a backward pass outside.
    ///
    /// # Errors
    /// What the group met, now or before.
    pub fn reduce_waiting(&self) -> Result<GradientsParams> {
        self.check()?;
        let context = &self.context;
        let means = context.sums().reduce_waiting(context)?;
        context.count_pass();
        let device = context.device.clone().inner();
        let mut gradients = GradientsParams::new();
        let pieces = means.map(|means| gradient_pieces(context, &means));
        for (number, piece) in pieces.into_iter().flatten() {
            let id = context.plan.parameters[number].id;
            gradients.register(id, piece.into_tensor(&device));
        }
        Ok(gradients)
    }

    /// Runs a forward and backward pass that only keeps other ranks company: this rank's gradients count as if
    /// it had used no parameter.
    pub fn without_counting<T>(&self, pass: impl FnOnce() -> T) -> T {
        self.with_flag(|sums| &mut sums.counting, pass)
    }

    fn with_flag<T>(
        &self,
        flag: fn(&mut GradientSums) -> &mut bool,
        pass: impl FnOnce() -> T,
    ) -> T {
        struct Restore<'a>(&'a ShardContext, fn(&mut GradientSums) -> &mut bool, bool);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                *(self.1)(&mut self.0.sums()) = self.2;
            }
        }
        let before = std::mem::replace(flag(&mut self.context.sums()), false);
        let restore = Restore(&self.context, flag, before);
        let made = pass();
        drop(restore);
        made
    }

    /// This rank's part of the mean gradients, which a backward pass has left. A parameter that no rank
    /// used has none, so that the optimizer leaves it alone.
    ///
    /// # Errors
    /// What the group met, in the forward and backward pass too.
    pub fn gradients<M: Module>(&self, gradients: Gradients, model: &M) -> Result<GradientsParams> {
        self.check()?;
        Ok(GradientsParams::from_grads(gradients, model))
    }

    /// The whole model, on every rank, with its parameters' own identifiers: what to save, so that an
    /// optimizer's saved state finds its parameters again. Collective: a gather per unit.
    ///
    /// Burn's own `materialize()` gives the same values, but the stand-ins' identifiers, and NaN where the
    /// group has failed.
    ///
    /// # Errors
    /// What the group met, now or before.
    pub fn materialize<M: Module>(&self, model: M) -> Result<M> {
        struct Rename<'a>(&'a HashMap<ParamId, ParamId>);
        impl ModuleMapper for Rename<'_> {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let Some(&own) = self.0.get(&param.id) else {
                    return param;
                };
                let (_, value, mapper) = param.consume();
                Param::from_mapped_value(own, value, mapper)
            }
        }
        self.check()?;
        let whole = model.materialize();
        self.check()?;
        Ok(whole.map(&mut Rename(&self.ids)))
    }

    /// Checks that an optimizer may step the wrapped model: one that stepped the model before it was
    /// wrapped holds states of whole parameters. Local.
    ///
    /// # Errors
    /// [`DistError::Config`].
    pub fn check_optimizer(&self, optimizer: &ModuleOptimizer) -> Result<()> {
        if self.context.passes() > 0 || optimizer.to_record().is_empty() {
            return Ok(());
        }
        Err(DistError::config(
            format!(
                "rank {}: this optimizer has stepped before: its state is of whole parameters",
                self.group().rank()
            ),
            "wrap the model first, and give it a new optimizer",
        ))
    }

    /// `Err` if the group failed, also inside a forward or backward pass, where an error cannot be
    /// returned and values turn to NaN.
    ///
    /// # Errors
    /// The first failure.
    pub fn check(&self) -> Result<()> {
        let failure = self.context.sums().failure.clone();
        match failure {
            Some(failure) => Err(failure),
            None => self.context.groups.check(),
        }
    }

    /// Scales gradients, as [`gradients`](Self::gradients) gave them, down to a norm of at most `max_norm`
    /// over all parameters of the model together; returns them and the norm that they had, which is the
    /// one of the unsharded model, bit for bit, on every rank. Parameters that are ignored do not count.
    /// Collective: one small all_reduce.
    ///
    /// Gradients of a norm that is not finite are returned as they are.
    ///
    /// # Errors
    /// [`DistError::Config`] if `max_norm` is not a positive number, or for a parameter that is split over
    /// ranks that [`model_parallel`](crate::FullyShard::model_parallel) does not name; else what the group
    /// met.
    pub fn clip_grad_norm<M: Module>(
        &self,
        mut gradients: GradientsParams,
        model: &M,
        max_norm: f64,
    ) -> Result<(GradientsParams, f64)> {
        let norm = self.sum_of_squares(&gradients, model)?.norm();
        if let Some(factor) = clip_factor(norm, max_norm)? {
            scale_gradients(&mut gradients, model, factor);
        }
        Ok((gradients, norm))
    }

    /// Takes a loss scale off the gradients; `None` if a gradient of any rank is not finite: then all
    /// ranks skip the step. Collective: one small all_reduce.
    ///
    /// # Errors
    /// What the group met.
    pub fn unscale<M: Module>(
        &self,
        mut gradients: GradientsParams,
        model: &M,
        loss_scale: &mut LossScale,
    ) -> Result<Option<GradientsParams>> {
        let overflow = self.sum_of_squares(&gradients, model)?.num_not_finite() > 0;
        let factor = loss_scale.decide(overflow);
        Ok(factor.map(|factor| {
            scale_gradients(&mut gradients, model, factor);
            gradients
        }))
    }

    /// Over all ranks that hold different pieces; what is whole counts on the first.
    fn sum_of_squares<M: Module>(&self, gradients: &GradientsParams, model: &M) -> Result<NormSum> {
        let context = &self.context;
        for managed in &context.plan.parameters {
            let placements = &managed.placements;
            context.model_parallel.check(&managed.name, placements)?;
        }
        let managed = context.plan.parameters.iter();
        let counted: HashSet<ParamId> = managed
            .filter(|managed| !context.plan.is_whole(managed.unit) || self.group().index() == 0)
            .filter(|managed| {
                let placements = &managed.placements;
                context.model_parallel.counts(managed.id, placements)
            })
            .map(|managed| managed.id)
            .collect();
        let sum = sum_of_squares(gradients, model, |id| counted.contains(&id));
        let sum = sum.all_reduce(self.group())?;
        context.model_parallel.sum(sum)
    }
}
