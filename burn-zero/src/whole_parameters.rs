//! Parameters that each belong to one rank as a whole.

use std::collections::HashSet;

use burn::module::{ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor};
use burn_dist::communicator::{HostBuffer, Operation, Work};
use burn_dist::data_parallel::ParameterTable;

use crate::ShardedOptimizer;

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
pub(crate) struct KeepOwn<'a> {
    pub(crate) own: HashSet<ParamId>,
    pub(crate) gradients: &'a mut GradientsParams,
}

impl ModuleVisitor for KeepOwn<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.own.contains(&param.id) {
            drop(self.gradients.remove::<D>(param.id));
        }
    }
}

/// Starts a broadcast of every trained parameter from its owner.
pub(crate) struct Share<'a> {
    pub(crate) sharded: &'a ShardedOptimizer,
    pub(crate) works: Vec<(ParamId, DType, Device, Work)>,
    pub(crate) seen: HashSet<ParamId>,
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
        let (dtype, device) = (base.dtype(), base.device().inner());
        let flat: Tensor<1> = base.inner().reshape([-1]);
        let input = HostBuffer::from(flat.into_data());
        let work = self
            .sharded
            .group()
            .start(Operation::Broadcast { root }, input);
        self.works.push((param.id, dtype, device, work));
    }
}
