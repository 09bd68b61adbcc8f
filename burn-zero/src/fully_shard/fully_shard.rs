//! [`FullyShard`]: the settings of stage 3, and wrapping.

use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Module, ParamGroup, ParamId};
use burn::tensor::{DType, Tensor};
use burn_dist::communicator::HostBuffer;
use burn_dist::data_parallel::{ParameterSpec, ParameterTable, broadcast_buffers};
use burn_dist::{DistError, ProcessGroup, Result};

use super::attach::{Attach, ReadUnmanaged, Recheckpoint, from_root, is_root};
use super::fully_sharded::FullySharded;
use super::graph_ties::Marks;
use super::parameter_version::ParameterVersion;
use super::shard_context::{ContextOptions, ShardContext};
use super::shard_groups::ShardGroups;
use super::shard_plan::ShardPlan;
use super::{MixedPrecisionPolicy, UnitPolicy};
use crate::ModelParallel;

/// Fully sharded data parallelism for any module, without touching its code: ZeRO stage 3 (arXiv
/// 1910.02054, section 5.3).
///
/// *What is replicated:* nothing of size; parameters that are not trained, that are ignored, or that stay
/// whole by choice. *What is split:* the batch, parameters, gradients, optimizer state. *What moves* per
/// step and rank, S being the bytes of all parameters and `n` the ranks: `S(n-1)/n` to gather parameters
/// in the forward pass, as much again in the backward pass (less the unit that the forward pass ended
/// with; nothing without [`reshard_after_forward`](Self::reshard_after_forward)), and `S(n-1)/n` to
/// reduce gradients.
///
/// Each trained parameter is kept as this rank's piece of it, one-dimensional, under its own identifier
/// and path: an optimizer made for the model steps the pieces. What stands in the module's field, with an
/// identifier of its own, has the parameter's shape and one number. Only optimizers that treat elements one by
/// one ([`ElementWise`](crate::ElementWise)) give the numbers of the unsharded model; Burn's clipping by
/// norm is not such, see [`FullySharded::clip_grad_norm`].
///
/// Every use of a parameter is a collective: all ranks run equally many forward passes, in evaluation and
/// sampling too. Ranks that differ get an error that names both units.
///
/// ```no_run
/// # use burn::{nn::Linear, optim::AdamWConfig, tensor::Tensor};
/// # use burn_dist::{ProcessGroup, Result};
/// # use burn_zero::FullyShard;
/// # fn example(group: ProcessGroup, model: Linear, batch: Tensor<2>) -> Result<()> {
/// let (sharded, mut model) = FullyShard::new(&group).wrap(model)?;
/// let mut optimizer = AdamWConfig::new().init();
/// let loss = model.forward(batch).mean();
/// let gradients = sharded.gradients(loss.backward(), &model)?;
/// model = optimizer.step(1e-3, model, gradients);
/// # Ok(()) }
/// ```
///
/// `GradientsParams::from_grads` works as well, as in Burn's `Learner`; a failure of the group then shows
/// as NaN and in [`FullySharded::check`]. [`FullySharded::materialize`] gives the whole model back, on every
/// rank; save that one, not the wrapped one.
#[derive(Debug, Clone)]
pub struct FullyShard {
    groups: ShardGroups,
    units: UnitPolicy,
    least_unit: usize,
    whole_below: usize,
    ignored: Vec<ParamGroup>,
    mixed_precision: MixedPrecisionPolicy,
    model_parallel: ModelParallel,
    options: ContextOptions,
}

impl FullyShard {
    /// Splits over the ranks of a group, a unit per layer.
    pub fn new(group: &ProcessGroup) -> Self {
        /// Smaller messages cost their start, not their bytes.
        const LEAST_UNIT: usize = 64 << 10;
        Self {
            groups: ShardGroups {
                shard: group.clone(),
                replicate: None,
            },
            units: UnitPolicy::PerLayer,
            least_unit: LEAST_UNIT,
            whole_below: 0,
            ignored: Vec::new(),
            mixed_precision: MixedPrecisionPolicy::default(),
            model_parallel: ModelParallel::new(),
            options: ContextOptions {
                reshard_after_forward: true,
                prefetch: true,
                average_micro_steps: false,
                sum_ranks: false,
            },
        }
    }

    /// Hybrid sharding: parameters are split inside the first group and repeated over `group`, the ranks
    /// that hold the same pieces (mesh axes DpShard and DpReplicate). Gradients are summed in the first
    /// group, then over this one.
    pub fn replicate(mut self, group: &ProcessGroup) -> Self {
        self.groups.replicate = Some(group.clone());
        self
    }

    /// The groups over which the model's layers are split: norms and decisions to skip a step go over all
    /// their parts.
    pub fn model_parallel(mut self, groups: &ModelParallel) -> Self {
        self.model_parallel = groups.clone();
        self
    }

    /// Which parameters travel together.
    pub fn units(mut self, policy: UnitPolicy) -> Self {
        self.units = policy;
        self
    }

    /// Units smaller than this many bytes (64 KiB by default) join their neighbour.
    pub fn least_unit_bytes(mut self, bytes: usize) -> Self {
        self.least_unit = bytes;
        self
    }

    /// Parameters of fewer elements stay whole on every rank (0 by default: none).
    pub fn whole_below(mut self, elements: usize) -> Self {
        self.whole_below = elements;
        self
    }

    /// Parameters that are left alone: not split, not reduced, not even made equal.
    pub fn ignore(mut self, parameters: ParamGroup) -> Self {
        self.ignored.push(parameters);
        self
    }

    /// `true` (default): a unit is let go after its forward pass and gathered again for its backward
    /// pass; `false`: it is kept.
    ///
    /// A unit lives as long as anything looks into it. From the forward to the backward pass Burn keeps the
    /// weights of embeddings, and views of the weights of linear layers whose input has several batches
    /// that are not worth merging; on a device with `gradient_checkpointing()` it makes such views again,
    /// and the unit goes. A unit of an embedding stays.
    pub fn reshard_after_forward(mut self, reshard: bool) -> Self {
        self.options.reshard_after_forward = reshard;
        self
    }

    /// `true` (default): the next unit travels while this one computes.
    pub fn prefetch(mut self, prefetch: bool) -> Self {
        self.options.prefetch = prefetch;
        self
    }

    /// `true`: the gradient is the mean over ranks and micro-steps; `false` (default): the mean over ranks
    /// of the sum over the micro-steps of [`FullySharded::no_sync`].
    pub fn average_micro_steps(mut self, average: bool) -> Self {
        self.options.average_micro_steps = average;
        self
    }

    /// `true`: the gradient is the sum over ranks; `false` (default): the mean.
    pub fn sum_ranks(mut self, sum: bool) -> Self {
        self.options.sum_ranks = sum;
        self
    }

    /// What a trainer has to know: element types, and whether micro-steps are averaged.
    #[cfg(feature = "train")]
    pub(crate) fn of_trainer(&self) -> (MixedPrecisionPolicy, bool) {
        (self.mixed_precision, self.options.average_micro_steps)
    }

    /// Element types of compute, sums and master weights.
    pub fn mixed_precision(mut self, policy: MixedPrecisionPolicy) -> Self {
        self.mixed_precision = policy;
        self
    }

    /// Checks that all ranks hold the same parameters (names, shapes, element types, order), gives every
    /// rank the values of the first, and keeps this rank's pieces. Collective: a gather of hashes and a
    /// broadcast per parameter. Lazy parameters are drawn on the first rank, one at a time: no rank ever
    /// holds the whole model.
    ///
    /// Parameters of BatchNorm stay whole, and its running state is each rank's own. A clone of the model
    /// that is kept elsewhere keeps its whole parameters alive.
    ///
    /// # Errors
    /// [`DistError::Config`] for a model without trained parameters, wrapped before, or on several
    /// devices, and for groups that do not belong to one mesh; [`DistError::Replica`] for models that
    /// differ; else what a group met.
    pub fn wrap<M: Module>(self, model: M) -> Result<(FullySharded, M)> {
        let table = ParameterTable::of_lazy(&model)?;
        self.groups.check_grid()?;
        table.verify(&self.groups.shard)?;
        if let Some(replicate) = &self.groups.replicate {
            table.verify(replicate)?;
        }
        let ignored = |spec: &&ParameterSpec| {
            let mut groups = self.ignored.iter();
            groups.any(|group| group.matches(&spec.id, Some(&spec.name)))
        };
        let context = Arc::new(self.context(&table, ignored)?);
        let ignored: Vec<ParamId> = table.specs().iter().filter(ignored).map(|s| s.id).collect();
        let unmanaged = self.unmanaged(&model, &table, &context, &ignored)?;
        let mut attach = Attach {
            version: ParameterVersion::new(context.clone()),
            marks: Arc::new(Marks::new(&context.device, &context.plan.units)),
            ignored,
            table: &table,
            known: HashMap::new(),
            unmanaged,
            places: 0,
            ids: HashMap::new(),
            failure: None,
        };
        let model = broadcast_buffers(model, &table, &self.groups.shard)?;
        let model = match &self.groups.replicate {
            Some(replicate) => broadcast_buffers(model, &table, replicate)?,
            None => model,
        };
        let model = attached(model, &mut attach)?;
        // A running state is shared between clones; this pair gives this rank its own.
        let model = model.valid().train();
        let probe: Tensor<1> = Tensor::zeros([1], &context.device);
        let model = match probe.gradient_checkpointing_strategy() {
            Some(strategy) => model.map(&mut Recheckpoint(strategy)),
            None => model,
        };
        Ok((FullySharded::new(context, attach.ids), model))
    }

    /// The first rank's values of what is neither split nor ignored.
    fn unmanaged<M: Module>(
        &self,
        model: &M,
        table: &ParameterTable,
        context: &ShardContext,
        ignored: &[ParamId],
    ) -> Result<HashMap<ParamId, HostBuffer>> {
        let managed = context.plan.parameters.iter().map(|managed| managed.id);
        let mut read = ReadUnmanaged {
            others: managed.chain(ignored.iter().copied()).collect(),
            is_root: is_root(&self.groups),
            values: HashMap::new(),
        };
        model.visit(&mut read);
        let floats = table.specs().iter().filter(|spec| spec.dtype.is_float());
        let mut values = HashMap::new();
        for spec in floats.filter(|spec| !read.others.contains(&spec.id)) {
            let own = read.values.remove(&spec.id);
            values.insert(spec.id, from_root(&self.groups, spec, own)?);
        }
        Ok(values)
    }

    fn context(
        &self,
        table: &ParameterTable,
        ignored: impl Fn(&&ParameterSpec) -> bool,
    ) -> Result<ShardContext> {
        let rank = self.groups.shard.rank();
        let specs: Vec<&ParameterSpec> = table
            .specs()
            .iter()
            .filter(|spec| spec.trainable && !ignored(spec))
            .collect();
        let Some(first) = specs.first() else {
            return Err(DistError::config(
                format!("rank {rank}: the model has no trained parameter to split"),
                "build it on `device.autodiff()`, or call train() on a validation model",
            ));
        };
        let device = first.device.clone();
        if let Some(other) = specs.iter().find(|spec| spec.device != device) {
            return Err(DistError::config(
                format!(
                    "rank {rank}: {} is on {:?}, but {} is on {device:?}",
                    other.name, other.device, first.name
                ),
                "a rank has one device: move the model there with fork()",
            ));
        }
        let policy = &self.mixed_precision;
        let sums = [policy.reduce, policy.master].into_iter().flatten();
        if let Some(dtype) = sums
            .into_iter()
            .find(|d| !matches!(d, DType::F32 | DType::F64))
        {
            return Err(DistError::config(
                format!("rank {rank}: sums and master weights in {dtype:?}"),
                "MixedPrecisionPolicy::reduce and master are f32 or f64",
            ));
        }
        let whole = |spec: &ParameterSpec| {
            spec.num_elements() < self.whole_below || in_batch_norm(spec, table)
        };
        let plan = ShardPlan::new(
            &specs,
            whole,
            policy,
            (&self.units, self.least_unit),
            self.groups.shard.size(),
        );
        Ok(ShardContext::new(
            self.groups.clone(),
            device,
            plan,
            self.model_parallel.clone(),
            self.options,
        ))
    }
}

fn attached<M: Module>(model: M, attach: &mut Attach<'_>) -> Result<M> {
    let model = model.apply_reparameterization(&mut *attach);
    match attach.failure.take() {
        Some(failure) => Err(failure),
        None => Ok(model),
    }
}

/// Whether a running state stands beside the parameter.
fn in_batch_norm(spec: &ParameterSpec, table: &ParameterTable) -> bool {
    let Some((parent, _)) = spec.name.rsplit_once('.') else {
        return table.specs().iter().any(|s| s.name == "running_mean");
    };
    let state = format!("{parent}.running_mean");
    table.specs().iter().any(|spec| spec.name == state)
}
