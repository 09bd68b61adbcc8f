//! [`RankOrderAccumulator`]: what N ranks compute, on one.

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::Tensor;

/// Sums micro-batches on one rank in the grouping that N ranks would: first each rank's micro-steps
/// in their order, then the ranks' sums in rank order, if asked for inside each replica first; the mean
/// divides once at the end.
///
/// Plain Burn operations, no communication: the oracle that data-parallel runs are compared with,
/// bit for bit.
pub struct RankOrderAccumulator<M> {
    rank: GradientsAccumulator<M>,
    replica: GradientsAccumulator<M>,
    total: GradientsAccumulator<M>,
    /// Ranks in a replica; `None`: there is one replica.
    shards: Option<usize>,
    ranks: usize,
    count: usize,
}

impl<M: Module> RankOrderAccumulator<M> {
    /// Nothing accumulated.
    pub fn new() -> Self {
        Self {
            rank: GradientsAccumulator::new(),
            replica: GradientsAccumulator::new(),
            total: GradientsAccumulator::new(),
            shards: None,
            ranks: 0,
            count: 0,
        }
    }

    /// Nothing accumulated; every `shards` ranks are a replica, whose sum is made before it joins the
    /// others, as hybrid sharding does.
    pub fn in_replicas_of(shards: usize) -> Self {
        Self {
            shards: Some(shards),
            ..Self::new()
        }
    }

    /// Adds one micro-step of the current rank.
    pub fn add(&mut self, model: &M, gradients: GradientsParams) {
        self.rank.accumulate(model, gradients);
        self.count += 1;
    }

    /// Ends the current rank; the next micro-step belongs to the next rank.
    pub fn end_rank(&mut self, model: &M) {
        self.replica.accumulate(model, self.rank.grads());
        self.ranks += 1;
        if self
            .shards
            .is_some_and(|shards| self.ranks.is_multiple_of(shards))
        {
            self.total.accumulate(model, self.replica.grads());
        }
    }

    /// The mean over all micro-steps of all ranks, and a fresh start.
    pub fn mean(&mut self, model: &M) -> GradientsParams {
        let sum = match self.shards {
            Some(_) => &mut self.total,
            None => &mut self.replica,
        };
        self.ranks = 0;
        mean_gradients(sum.grads(), std::mem::take(&mut self.count), model)
    }
}

impl<M: Module> Default for RankOrderAccumulator<M> {
    fn default() -> Self {
        Self::new()
    }
}

/// Divides gradients by the number of micro-steps that they were added up over. Local.
pub fn mean_gradients<M: Module>(
    gradients: GradientsParams,
    count: usize,
    model: &M,
) -> GradientsParams {
    let mut mean = Mean {
        gradients,
        count,
        seen: HashSet::new(),
    };
    model.visit(&mut mean);
    mean.gradients
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
