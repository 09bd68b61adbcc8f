//! [`GradientSums`]: gradients in, this rank's part of their means out.

use burn::tensor::DType;
use burn_dist::backend::{DeviceArray, FlatArray, FlatMemory, FlatWork, LeafId};
use burn_dist::communicator::{Operation, ReduceOp};
use burn_dist::{DistError, Result};

use super::shard_context::{ContextOptions, ShardContext};
use super::shard_plan::{ManagedParameter, ShardPlan};

/// The sum of a unit's gradients.
#[derive(Debug, Default)]
struct UnitSum {
    /// Of all elements, on this rank.
    buffer: Option<FlatArray>,
    launched: bool,
    /// Over the group of shards, then over the replicas.
    work: Option<FlatWork>,
    /// This rank's part, over all ranks.
    reduced: Option<FlatArray>,
}

/// The means that a backward pass ended with.
#[derive(Debug)]
pub(crate) struct Means {
    /// This rank's part of each unit, of those that any use had.
    pub(crate) parts: Vec<Option<FlatArray>>,
    /// For each parameter, whether any rank used it.
    pub(crate) used: Vec<bool>,
    /// For each parameter that this rank used, the leaf that it was kept in.
    pub(crate) leaves: Vec<Option<LeafId>>,
}

/// Adds up the gradients of backward passes, unit by unit, and starts a unit's reduction when a pass has
/// brought all of them. At most one reduction runs while the next unit fills.
#[derive(Debug)]
pub(crate) struct GradientSums {
    memory: FlatMemory,
    dtypes: Vec<DType>,
    options: ContextOptions,
    units: Vec<UnitSum>,
    /// Sums over the uses in this pass, for parameters that have gradients of earlier passes.
    pending: Vec<Option<FlatArray>>,
    /// In this pass; in earlier passes since the last reduction.
    touched: Vec<bool>,
    earlier: Vec<bool>,
    leaves: Vec<Option<LeafId>>,
    /// The unit whose reduction over shards runs.
    running: Option<usize>,
    /// `false` inside `no_sync`.
    pub(crate) syncing: bool,
    /// `false`: gradients come of a pass that only keeps other ranks company.
    pub(crate) counting: bool,
    /// A gradient came since the last pass ended.
    dirty: bool,
    micro_steps: usize,
    pub(crate) failure: Option<DistError>,
}

impl GradientSums {
    pub(crate) fn new(plan: &ShardPlan, memory: FlatMemory, options: ContextOptions) -> Self {
        let ShardPlan {
            parameters, units, ..
        } = plan;
        Self {
            memory,
            units: units.iter().map(|_| UnitSum::default()).collect(),
            dtypes: plan.sum_dtypes.clone(),
            options,
            pending: parameters.iter().map(|_| None).collect(),
            touched: vec![false; parameters.len()],
            earlier: vec![false; parameters.len()],
            leaves: vec![None; parameters.len()],
            running: None,
            syncing: true,
            counting: true,
            dirty: false,
            micro_steps: 0,
            failure: None,
        }
    }

    /// Takes the gradient of one use. Uses of one pass are summed among themselves first, as the autodiff
    /// graph would at a leaf.
    pub(crate) fn add(
        &mut self,
        context: &ShardContext,
        parameter: usize,
        leaf: Option<LeafId>,
        gradient: DeviceArray,
    ) -> Result<()> {
        let ManagedParameter {
            unit, place, name, ..
        } = &context.plan.parameters[parameter];
        if self.units[*unit].launched {
            return Err(DistError::config(
                format!(
                    "rank {}: the gradient of {name} came after its unit {} had been reduced",
                    context.groups.shard.rank(),
                    context.plan.units[*unit].name
                ),
                "run the backward passes of earlier micro-steps inside no_sync",
            ));
        }
        let known = std::mem::replace(&mut self.leaves[parameter], leaf);
        if known.is_some_and(|known| Some(known) != leaf) {
            return Err(DistError::config(
                format!(
                    "rank {}: gradients of two versions of {name} came before a reduction",
                    context.groups.shard.rank()
                ),
                "a loss may train one version of a model: use detach(), no_grad() or valid() for the other, and step after the last micro-step",
            ));
        }
        self.dirty = true;
        if !self.counting {
            // This rank takes part in the reduction all the same.
            self.buffer(context, *unit);
            return Ok(());
        }
        let first = !std::mem::replace(&mut self.touched[parameter], true);
        let dtype = self.dtypes[*unit];
        let gradient = self.memory.take(gradient)?;
        if self.earlier[parameter] {
            let memory = &self.memory;
            let sum =
                self.pending[parameter].get_or_insert_with(|| memory.array(dtype, place.len()));
            sum.put(0, gradient, first);
        } else {
            self.buffer(context, *unit)
                .put(place.start, gradient, first);
        }
        Ok(())
    }

    fn buffer(&mut self, context: &ShardContext, unit: usize) -> &mut FlatArray {
        let memory = &self.memory;
        let (dtype, len) = (self.dtypes[unit], context.plan.padded_len(unit));
        self.units[unit]
            .buffer
            .get_or_insert_with(|| memory.array(dtype, len))
    }

    /// All gradients of the unit have come that this pass brings.
    pub(crate) fn end_unit(&mut self, context: &ShardContext, unit: usize) -> Result<()> {
        self.settle(context, unit);
        let sum = &self.units[unit];
        if !self.syncing || sum.launched || sum.buffer.is_none() {
            return Ok(());
        }
        self.launch(context, unit)
    }

    /// Adds this pass to the passes before.
    fn settle(&mut self, context: &ShardContext, unit: usize) {
        for &parameter in &context.plan.units[unit].parameters {
            if let Some(sum) = self.pending[parameter].take() {
                let start = context.plan.parameters[parameter].place.start;
                self.buffer(context, unit).put(start, sum, false);
            }
        }
    }

    fn launch(&mut self, context: &ShardContext, unit: usize) -> Result<()> {
        self.await_running(context)?;
        let mut buffer = self.units[unit]
            .buffer
            .take()
            .expect("invariant: asked before");
        let mut end = 0;
        for &parameter in &context.plan.units[unit].parameters {
            let place = context.plan.parameters[parameter].place.clone();
            end = place.end;
            if !self.touched[parameter] && !self.earlier[parameter] {
                buffer.fill_neutral(place);
            }
        }
        buffer.fill_neutral(end..context.plan.padded_len(unit));
        let operation = match context.plan.is_whole(unit) {
            true => Operation::AllReduce(ReduceOp::Sum),
            false => Operation::ReduceScatter(ReduceOp::Sum),
        };
        let label = label(context, unit);
        let sum = &mut self.units[unit];
        sum.launched = true;
        sum.work = Some(buffer.start(operation, &context.groups.shard, Some(&label)));
        self.running = Some(unit);
        Ok(())
    }

    /// Takes in the reduction over shards that runs, and sends its result on to the replicas.
    fn await_running(&mut self, context: &ShardContext) -> Result<()> {
        let Some(unit) = self.running.take() else {
            return Ok(());
        };
        let sum = &mut self.units[unit];
        let work = sum.work.take().expect("invariant: it runs");
        let part = work.wait()?;
        match &context.groups.replicate {
            None => sum.reduced = Some(part),
            Some(group) => {
                let operation = Operation::AllReduce(ReduceOp::Sum);
                sum.work = Some(part.start(operation, group, Some(&label(context, unit))));
            }
        }
        Ok(())
    }

    /// Ends a backward pass. Inside `no_sync`, or when it had ended before, there is nothing to give;
    /// else the means.
    pub(crate) fn end_pass(&mut self, context: &ShardContext) -> Result<Option<Means>> {
        if !std::mem::take(&mut self.dirty) {
            return Ok(None);
        }
        self.micro_steps += 1;
        for unit in 0..self.units.len() {
            self.settle(context, unit);
        }
        if !self.syncing {
            for (earlier, touched) in self.earlier.iter_mut().zip(&mut self.touched) {
                *earlier |= std::mem::take(touched);
            }
            return Ok(None);
        }
        for unit in 0..self.units.len() {
            if !self.units[unit].launched && self.units[unit].buffer.is_some() {
                self.launch(context, unit)?;
            }
        }
        self.await_running(context)?;
        for sum in &mut self.units {
            if let Some(work) = sum.work.take() {
                sum.reduced = Some(work.wait()?);
            }
        }
        let flags = self.touched.iter().zip(&self.earlier);
        let flags = flags.map(|(now, before)| u8::from(*now || *before));
        let groups = &context.groups;
        let mut flags = groups
            .shard
            .all_reduce_values(flags.collect(), ReduceOp::Max)?;
        if let Some(replicate) = &groups.replicate {
            flags = replicate.all_reduce_values(flags, ReduceOp::Max)?;
        }
        let steps = match self.options.average_micro_steps {
            true => self.micro_steps,
            false => 1,
        };
        let ranks = match self.options.sum_ranks {
            true => 1,
            false => groups.num_ranks(),
        };
        let divisor = ranks * steps;
        let parts = self.units.iter_mut().map(|sum| {
            let mut part = sum.reduced.take()?;
            if divisor > 1 {
                part.divide(divisor);
            }
            Some(part)
        });
        let means = Means {
            parts: parts.collect(),
            used: flags.into_iter().map(|flag| flag == 1).collect(),
            leaves: self.leaves.clone(),
        };
        self.reset();
        Ok(Some(means))
    }

    /// As [`end_pass`](Self::end_pass), where no pass has come after those that were not to send anything.
    pub(crate) fn reduce_waiting(&mut self, context: &ShardContext) -> Result<Option<Means>> {
        for unit in 0..self.units.len() {
            // This rank takes part in the reduction of what others used.
            self.buffer(context, unit);
        }
        self.dirty = true;
        self.micro_steps = self.micro_steps.saturating_sub(1);
        self.end_pass(context)
    }

    fn reset(&mut self) {
        self.units
            .iter_mut()
            .for_each(|sum| *sum = UnitSum::default());
        self.pending.iter_mut().for_each(|sum| *sum = None);
        self.touched.fill(false);
        self.earlier.fill(false);
        self.leaves.fill(None);
        self.running = None;
        self.dirty = false;
        self.micro_steps = 0;
    }

    /// A backward pass cannot return an error, and peers must not wait for this rank.
    pub(crate) fn give_up(&mut self, context: &ShardContext, failure: DistError) {
        if self.failure.is_none() {
            context.groups.abort(&failure);
            self.failure = Some(failure);
        }
        self.reset();
    }
}

fn label(context: &ShardContext, unit: usize) -> String {
    format!(
        "the gradients of {} in backward pass {}",
        context.plan.units[unit].name,
        context.passes() + 1
    )
}
