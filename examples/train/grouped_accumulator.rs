//! Sums of gradients in the grouping of many ranks.

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::Tensor;

use super::Grouping;

/// Sums each rank's micro-steps, then ranks inside a replica, then replicas; the mean divides once.
pub(super) struct GroupedAccumulator<M> {
    grouping: Grouping,
    rank: GradientsAccumulator<M>,
    replica: GradientsAccumulator<M>,
    total: GradientsAccumulator<M>,
    ranks: usize,
    count: usize,
}

impl<M: Module> GroupedAccumulator<M> {
    pub(super) fn new(grouping: Grouping) -> Self {
        Self {
            grouping,
            rank: GradientsAccumulator::new(),
            replica: GradientsAccumulator::new(),
            total: GradientsAccumulator::new(),
            ranks: 0,
            count: 0,
        }
    }

    pub(super) fn add(&mut self, model: &M, gradients: GradientsParams) {
        self.rank.accumulate(model, gradients);
        self.count += 1;
    }

    pub(super) fn end_rank(&mut self, model: &M) {
        self.replica.accumulate(model, self.rank.grads());
        self.ranks += 1;
        if self.ranks.is_multiple_of(self.grouping.shards) {
            self.total.accumulate(model, self.replica.grads());
        }
    }

    /// The mean over all micro-steps of all ranks.
    pub(super) fn mean(mut self, model: &M) -> GradientsParams {
        let mut divide = Divide {
            gradients: self.total.grads(),
            by: self.count as f64,
            seen: HashSet::new(),
        };
        model.visit(&mut divide);
        divide.gradients
    }
}

struct Divide {
    gradients: GradientsParams,
    by: f64,
    seen: HashSet<ParamId>,
}

impl ModuleVisitor for Divide {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.seen.insert(param.id) {
            return;
        }
        if let Some(sum) = self.gradients.remove::<D>(param.id) {
            self.gradients.register(param.id, sum.div_scalar(self.by));
        }
    }
}
