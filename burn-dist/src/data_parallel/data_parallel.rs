//! [`DataParallel`]: the strategy.

use std::sync::Arc;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Gradients, Tensor};

use super::reducer::{Averaging, Reduced, Reducer};
use super::synchronized::Attach;
use super::{BucketPlan, BucketSizes, DataParallelConfig, GradientEvent, ParameterTable, replica};
use crate::backend::FlatArray;
use crate::communicator::ReduceOp;
use crate::error::{DistError, Result};
use crate::group::ProcessGroup;

/// This rank's part of a bucket's mean gradients.
#[derive(Debug)]
pub struct BucketShard {
    /// The bucket's number in the [`BucketPlan`].
    pub bucket: usize,
    /// Part number `index` of `n` equal parts of the bucket, padding included: one dimension.
    pub values: FlatArray,
    /// For each of the bucket's slots, whether any rank used its parameter.
    pub used: Vec<bool>,
}

/// Data parallelism over the ranks of a group, for any module, without touching its code.
///
/// *What is replicated:* parameters, gradients, optimizer state. *What is split:* the batch.
/// *What moves:* per synchronisation each rank sends `2S(n-1)/n` bytes, `S` being the bytes of all
/// gradients (16-bit ones travel as f32), in buckets that start while the backward pass still runs.
///
/// ```no_run
/// # use burn::{module::Module, nn::Linear, optim::AdamWConfig, tensor::Tensor};
/// # use burn_dist::{ProcessGroup, Result, data_parallel::DataParallel};
/// # fn example(group: ProcessGroup, model: Linear, batch: Tensor<2>) -> Result<()> {
/// let (parallel, mut model) = DataParallel::wrap(model, &group)?;
/// let mut optimizer = AdamWConfig::new().init();
/// let loss = model.forward(batch).mean();
/// let gradients = parallel.sync(loss.backward(), &model)?;
/// model = optimizer.step(1e-3, model, gradients);
/// # Ok(()) }
/// ```
///
/// Gradients are delivered to the buckets, not to the leaves: [`sync`](Self::sync) gives them back,
/// and a step without it changes nothing. Do not combine with Burn's own `distributed` gradient
/// synchronisation, which would reduce twice.
#[derive(Debug)]
pub struct DataParallel {
    group: ProcessGroup,
    table: ParameterTable,
    pub(super) reducer: Arc<Reducer>,
    shard_gradients: bool,
}

/// What [`DataParallel::join`] says about this turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JoinTurn {
    /// How many ranks still have input in this turn.
    pub active: usize,
}

impl DataParallel {
    /// Wraps a training model with the default configuration. Collective.
    ///
    /// # Errors
    /// As [`wrap_with`](Self::wrap_with).
    pub fn wrap<M: Module>(model: M, group: &ProcessGroup) -> Result<(Self, M)> {
        Self::wrap_with(model, group, DataParallelConfig::default())
    }

    /// Checks that all ranks hold the same parameters (names, shapes, element types, order), gives
    /// every rank the values of index 0, and puts a hook on each trained parameter. Collective: a
    /// gather of hashes and a broadcast per parameter.
    ///
    /// The returned model has leaves and running states of its own, so rank threads may start from
    /// clones of one model. `materialize()` takes the hooks off again.
    ///
    /// # Errors
    /// [`DistError::Config`] for a model without trained parameters or wrapped before, and for a group
    /// whose members hold other parts of a parameter,
    /// [`DistError::Replica`] for models that differ, else what the group met.
    pub fn wrap_with<M: Module>(
        model: M,
        group: &ProcessGroup,
        config: DataParallelConfig,
    ) -> Result<(Self, M)> {
        let table = ParameterTable::of(&model)?;
        if !table.specs().iter().any(|spec| spec.trainable) {
            return Err(DistError::config(
                format!("rank {}: the model has no trained parameter", group.rank()),
                "build it on `device.autodiff()`, or call train() on a validation model",
            ));
        }
        table.verify(group)?;
        // A running state is shared between clones; this pair gives this rank its own.
        let model = replica::broadcast(model.valid().train(), &table, group)?;
        let trained: Vec<_> = table
            .specs()
            .iter()
            .map(|spec| spec.trainable.then(|| (spec.num_elements(), spec.dtype)))
            .collect();
        let sizes = match group.size() {
            // Nothing travels, and a bucket of one parameter takes the gradient without a copy.
            1 => BucketSizes::one_per_parameter(),
            _ => config.bucket_sizes,
        };
        let reducer = Arc::new(Reducer::new(
            group.clone(),
            BucketPlan::new(&trained, sizes),
            table.specs(),
            Averaging {
                ranks: !config.sum_ranks,
                micro_steps: config.average_micro_steps,
            },
            config.shard_gradients,
        ));
        let model = model.apply_reparameterization(Attach::new(&table, reducer.clone()));
        let parallel = Self {
            group: group.clone(),
            table,
            reducer,
            shard_gradients: config.shard_gradients,
        };
        Ok((parallel, model))
    }

    /// The ranks.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// The parameters, in visiting order.
    pub fn parameters(&self) -> &ParameterTable {
        &self.table
    }

    /// The buckets.
    pub fn plan(&self) -> &BucketPlan {
        self.reducer.plan()
    }

    /// Runs a backward pass whose gradients stay on this rank: they are added up in the buckets and
    /// travel with the next [`sync`](Self::sync). Local.
    ///
    /// ```no_run
    /// # use burn::{nn::Linear, tensor::Tensor};
    /// # use burn_dist::data_parallel::DataParallel;
    /// # fn example(parallel: &DataParallel, loss: Tensor<1>) {
    /// parallel.no_sync(|| loss.backward());
    /// # }
    /// ```
    pub fn no_sync(&self, backward: impl FnOnce() -> Gradients) {
        self.without_launching(|| self.reducer.take_leaves(backward()));
    }

    /// Ends a micro-step with `pass`, of which nothing is sent.
    pub(super) fn without_launching<T>(&self, pass: impl FnOnce() -> T) -> T {
        struct Restore<'a>(&'a Reducer, bool);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                self.0.set_launching(self.1);
            }
        }
        let restore = Restore(&self.reducer, self.reducer.set_launching(false));
        let made = pass();
        self.reducer.end_micro_step();
        drop(restore);
        made
    }

    /// Ends an optimizer step's gradients: launches the buckets that are left, waits for all, and
    /// returns the means. Collective; one all_reduce per bucket.
    ///
    /// A parameter that this rank did not use counts as zero; one that no rank used has no
    /// gradient, so that the optimizer leaves it alone.
    ///
    /// # Errors
    /// A failure of the group, also one met during the backward pass.
    pub fn sync<M: Module>(&self, grads: Gradients, model: &M) -> Result<GradientsParams> {
        self.finish(Some(grads), model)
    }

    /// As [`sync`](Self::sync), for a rank that has no input in this step while others have.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub fn sync_without_input<M: Module>(&self, model: &M) -> Result<GradientsParams> {
        self.finish(None, model)
    }

    /// Ends an optimizer step's gradients as [`sync`](Self::sync) does, and gives this rank its part of
    /// each bucket, in the order of the plan. Collective; one reduce_scatter per bucket, and a byte per
    /// parameter to know which were used. `None`: for gradients that were [delivered](Self::deliver).
    ///
    /// # Errors
    /// As [`sync`](Self::sync); [`DistError::Config`] if it was not made with `shard_gradients`.
    pub fn sync_shards(&self, grads: Option<Gradients>) -> Result<Vec<BucketShard>> {
        self.check_mode(true)?;
        if let Some(grads) = grads {
            self.reducer.take_leaves(grads);
        }
        let reduced = self.reducer.finish()?;
        let touched = reduced.iter().flat_map(|reduced| &reduced.touched);
        let touched = touched.map(|&touched| u8::from(touched)).collect();
        let used = self.group.all_reduce_values(touched, ReduceOp::Max)?;
        let mut used = used.into_iter().map(|flag| flag == 1);
        let shards = reduced.into_iter().enumerate();
        Ok(shards
            .map(|(bucket, reduced)| {
                let mut values = reduced.buffer;
                if reduced.divisor > 1 {
                    values.divide(reduced.divisor);
                }
                BucketShard {
                    bucket,
                    values,
                    used: used.by_ref().take(reduced.touched.len()).collect(),
                }
            })
            .collect())
    }

    fn check_mode(&self, shards: bool) -> Result<()> {
        if shards == self.shard_gradients {
            return Ok(());
        }
        let (made, call) = match shards {
            true => ("without", "sync"),
            false => ("with", "sync_shards"),
        };
        Err(DistError::config(
            format!(
                "rank {}: this DataParallel was made {made} shard_gradients",
                self.group.rank()
            ),
            format!("call {call}, or wrap the model with the other configuration"),
        ))
    }

    fn finish<M: Module>(&self, grads: Option<Gradients>, model: &M) -> Result<GradientsParams> {
        self.check_mode(false)?;
        if let Some(grads) = grads {
            self.reducer.take_leaves(grads);
        }
        let reduced = self.reducer.finish()?;
        let used = self.used_somewhere(&reduced)?;
        let mut unpack = Unpack {
            parallel: self,
            pieces: (0..self.table.specs().len()).map(|_| None).collect(),
            grads: GradientsParams::new(),
            failure: None,
        };
        for (bucket, reduced) in reduced.into_iter().enumerate() {
            unpack.open(bucket, reduced, &used);
        }
        model.visit(&mut unpack);
        match unpack.failure {
            Some(failure) => Err(failure),
            None => Ok(unpack.grads),
        }
    }

    /// For each parameter, whether any rank used it. A slot whose sum is -0.0 throughout may be one
    /// that no rank filled; all ranks see the same sums, so all of them ask, or none. Sums in device memory are not
    /// looked at: for those all ranks ask.
    fn used_somewhere(&self, reduced: &[Reduced]) -> Result<Vec<bool>> {
        let mut used = vec![true; self.table.specs().len()];
        let mut doubtful = Vec::new();
        let mut flags = Vec::new();
        for (layout, reduced) in self.plan().buckets().iter().zip(reduced) {
            for (slot, touched) in layout.slots.iter().zip(&reduced.touched) {
                let place = slot.offset..slot.offset + slot.len;
                if reduced.buffer.may_be_neutral(place) {
                    doubtful.push(slot.parameter);
                    flags.push(u8::from(*touched));
                }
            }
        }
        if !doubtful.is_empty() {
            let flags = self.group.all_reduce_values(flags, ReduceOp::Max)?;
            for (parameter, flag) in doubtful.into_iter().zip(flags) {
                used[parameter] = flag == 1;
            }
        }
        Ok(used)
    }

    /// For uneven inputs: every rank says once per step whether it has input; while any has, all
    /// take the step (those without input by [`sync_without_input`](Self::sync_without_input)), and
    /// parameters stay equal. `None` when no rank has input. Collective: one small all_reduce.
    ///
    /// The mean still divides by the size of the group.
    ///
    /// # Errors
    /// What the group met.
    pub fn join(&self, has_input: bool) -> Result<Option<JoinTurn>> {
        let flags = vec![u32::from(has_input)];
        let active = self.group.all_reduce_values(flags, ReduceOp::Sum)?[0] as usize;
        Ok((active > 0).then_some(JoinTurn { active }))
    }

    /// Checks that all ranks hold the same bits. Collective: a gather of hashes. Running states of
    /// BatchNorm differ between ranks by nature and are compared too: synchronise them first.
    ///
    /// # Errors
    /// [`DistError::Replica`] on every rank, naming the first parameter that differs.
    pub fn check_replicas<M: Module>(&self, model: &M) -> Result<()> {
        replica::compare(model, &self.table, &self.group)
    }

    /// Micro-steps of [`no_sync`](Self::no_sync) whose gradients wait for the next reduction.
    pub fn pending_micro_steps(&self) -> usize {
        self.reducer.pending_micro_steps()
    }

    /// What happened in the last finished step, in order: which gradients were ready when a bucket
    /// was launched.
    pub fn last_events(&self) -> Vec<GradientEvent> {
        self.reducer.last_events()
    }
}

/// A parameter's mean gradient: a view of its bucket.
type Piece = Tensor<1>;

struct Unpack<'a> {
    parallel: &'a DataParallel,
    pieces: Vec<Option<Piece>>,
    grads: GradientsParams,
    failure: Option<DistError>,
}

impl Unpack<'_> {
    fn open(&mut self, bucket: usize, reduced: Reduced, used: &[bool]) {
        let Reduced {
            mut buffer,
            divisor,
            ..
        } = reduced;
        if divisor > 1 {
            buffer.divide(divisor);
        }
        let layout = &self.parallel.plan().buckets()[bucket];
        let specs = self.parallel.table.specs();
        let device = specs[layout.slots[0].parameter].device.clone().inner();
        let whole = buffer.into_tensor(&device);
        for slot in &layout.slots {
            if !used[slot.parameter] {
                continue;
            }
            let piece = if layout.slots.len() == 1 {
                whole.clone()
            } else {
                whole.clone().slice([slot.offset..slot.offset + slot.len])
            };
            self.pieces[slot.parameter] = Some(piece);
        }
    }
}

impl ModuleVisitor for Unpack<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let base = param.base();
        if !base.is_require_grad() {
            return;
        }
        let Some(position) = self.parallel.table.position(param.id) else {
            self.failure = Some(DistError::config(
                format!(
                    "rank {}: the model holds a trained parameter {} of shape {:?} that was not there when it was wrapped",
                    self.parallel.group.rank(),
                    param.id,
                    base.dims()
                ),
                "pass the model that DataParallel::wrap returned, or wrap again after changing it",
            ));
            return;
        };
        let spec = &self.parallel.table.specs()[position];
        if let Some(piece) = self.pieces[position].take() {
            let device = spec.device.clone().inner();
            let gradient: Tensor<D> = piece.to_device(&device).reshape(base.dims());
            self.grads.register(param.id, gradient.cast(spec.dtype));
        }
    }
}
