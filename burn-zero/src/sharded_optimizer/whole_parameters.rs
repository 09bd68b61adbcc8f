//! Parameters that each belong to one rank as a whole.

use std::collections::{HashMap, HashSet};

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Gradients, Tensor};
use burn_dist::backend::{FlatMemory, FlatWork};
use burn_dist::communicator::Operation;
use burn_dist::data_parallel::{DataParallel, ParameterTable, scale_gradients};
use burn_dist::{DistError, Result};

use super::ShardedOptimizer;
use super::model_values::TakeValues;
use super::sharded_optimizer::Ownership;
use crate::clip_grad_norm::clip_grad_norm_over;

/// Deals whole parameters out: the largest first, each to the rank that has least so far.
pub(crate) fn owners(table: &ParameterTable, ranks: usize) -> Vec<usize> {
    let specs = table.specs();
    let mut order: Vec<usize> = (0..specs.len()).filter(|&i| specs[i].trainable).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(specs[i].num_elements()), i));
    let mut load = vec![0usize; ranks];
    let mut owners = vec![0; specs.len()];
    for parameter in order {
        let least = (0..ranks).min_by_key(|&rank| (load[rank], rank));
        let owner = least.expect("invariant: a group has a rank");
        load[owner] += specs[parameter].num_elements();
        owners[parameter] = owner;
    }
    owners
}

/// Drops the gradients of parameters that other ranks step.
struct KeepOwn<'a> {
    own: HashSet<ParamId>,
    gradients: &'a mut GradientsParams,
}

impl ModuleVisitor for KeepOwn<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.own.contains(&param.id) {
            drop(self.gradients.remove::<D>(param.id));
        }
    }
}

/// Starts a broadcast of every trained parameter from its owner.
struct Share<'a> {
    sharded: &'a ShardedOptimizer,
    works: Vec<(ParamId, Device, FlatWork)>,
    seen: HashSet<ParamId>,
    failure: Option<DistError>,
}

impl ModuleVisitor for Share<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let base = param.base();
        let table = self.sharded.data_parallel().parameters();
        let Some(parameter) = table.position(param.id).filter(|_| base.is_require_grad()) else {
            return;
        };
        if !self.seen.insert(param.id) {
            return;
        }
        let root = self
            .sharded
            .owner(parameter)
            .expect("invariant: whole parameters");
        let (group, device) = (self.sharded.group(), base.device().inner());
        match FlatMemory::of(group, &device).take(base.into()) {
            Ok(input) => {
                let work = input.start(Operation::Broadcast { root }, group, None);
                self.works.push((param.id, device, work));
            }
            Err(failure) => self.failure = self.failure.take().or(Some(failure)),
        }
    }
}

/// The gradients of the parameters that this rank steps.
fn drop_others<M: Module>(
    parallel: &DataParallel,
    owners: &[usize],
    mut gradients: GradientsParams,
    model: &M,
) -> GradientsParams {
    let index = parallel.group().index();
    let specs = parallel.parameters().specs().iter().zip(owners);
    let mut others = KeepOwn {
        own: specs
            .filter(|(_, owner)| **owner == index)
            .map(|(spec, _)| spec.id)
            .collect(),
        gradients: &mut gradients,
    };
    model.visit(&mut others);
    gradients
}

/// Gives every rank the parameters that their owners stepped. Collective.
fn share<M: Module>(sharded: &ShardedOptimizer, model: M) -> Result<M> {
    let mut share = Share {
        sharded,
        works: Vec::new(),
        seen: HashSet::new(),
        failure: None,
    };
    model.visit(&mut share);
    if let Some(failure) = share.failure {
        return Err(failure);
    }
    let works = share.works;
    let trained = works.iter().map(|(id, ..)| *id).collect();
    let mut frames = TakeValues::new(trained);
    let model = model.map(&mut frames);
    let mut values = HashMap::new();
    for (id, device, work) in works {
        values.insert(id, work.wait()?.into_tensor(&device));
    }
    Ok(model.map(&mut frames.put(values)))
}

impl ShardedOptimizer {
    /// As `step_from`, where parameters are whole.
    pub(super) fn step_whole<M: Module>(
        &mut self,
        lr: ModuleLearningRate,
        model: M,
        gradients: Option<Gradients>,
        factor: Option<f64>,
    ) -> Result<M> {
        let mut gradients = match gradients {
            Some(gradients) => self.parallel.sync(gradients, &model)?,
            None => self.parallel.sync_without_input(&model)?,
        };
        if let Some(factor) = factor {
            scale_gradients(&mut gradients, &model, factor);
        }
        if let Some(loss_scale) = &mut self.settings.loss_scale {
            let Some(unscaled) =
                loss_scale.unscale_over(gradients, &model, &self.settings.model_parallel)?
            else {
                return Ok(model);
            };
            gradients = unscaled;
        }
        if let Some(max_norm) = self.settings.max_grad_norm {
            let norm;
            (gradients, norm) =
                clip_grad_norm_over(gradients, &model, max_norm, &self.settings.model_parallel)?;
            self.last_norm = Some(norm);
        }
        let Ownership::Whole(owners) = &self.ownership else {
            unreachable!("invariant: asked before")
        };
        let own = drop_others(&self.parallel, owners, gradients, &model);
        let model = self.optimizer.step(lr, model, own);
        share(self, model)
    }
}
