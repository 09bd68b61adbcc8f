//! [`RankOrderAccumulator`]: what N ranks compute, on one.

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::Tensor;

/// Sums micro-batches on one rank in the grouping that N ranks would: first each rank's micro-steps
/// in their order, then the ranks' sums in rank order; the mean divides once at the end.
///
/// Plain Burn operations, no communication: the oracle that data-parallel runs are compared with,
/// bit for bit.
pub struct RankOrderAccumulator<M> {
    rank: GradientsAccumulator<M>,
    total: GradientsAccumulator<M>,
    count: usize,
}

impl<M: Module> RankOrderAccumulator<M> {
    /// Nothing accumulated.
    pub fn new() -> Self {
        Self {
            rank: GradientsAccumulator::new(),
            total: GradientsAccumulator::new(),
            count: 0,
        }
    }

    /// Adds one micro-step of the current rank.
    pub fn add(&mut self, model: &M, gradients: GradientsParams) {
        self.rank.accumulate(model, gradients);
        self.count += 1;
    }

    /// Ends the current rank; the next micro-step belongs to the next rank.
    pub fn end_rank(&mut self, model: &M) {
        let sum = self.rank.grads();
        self.total.accumulate(model, sum);
    }

    /// The mean over all micro-steps of all ranks, and a fresh start.
    pub fn mean(&mut self, model: &M) -> GradientsParams {
        let mut mean = Mean {
            gradients: self.total.grads(),
            count: std::mem::take(&mut self.count),
            seen: HashSet::new(),
        };
        model.visit(&mut mean);
        mean.gradients
    }
}

impl<M: Module> Default for RankOrderAccumulator<M> {
    fn default() -> Self {
        Self::new()
    }
}

struct Mean {
    gradients: GradientsParams,
    count: usize,
    /// A shared parameter is visited wherever it stands, and divided once.
    seen: HashSet<ParamId>,
}

impl ModuleVisitor for Mean {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.seen.insert(param.id) {
            return;
        }
        if let Some(sum) = self.gradients.remove::<D>(param.id) {
            self.gradients
                .register(param.id, sum.div_scalar(self.count as f64));
        }
    }
}
