//! [`GradientSum`]: a stage's gradients, added up in the order of micro-batches.

use std::collections::{BTreeMap, HashSet};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

/// Adds micro-batches in their order whatever order they come in, so that no schedule changes a bit.
#[derive(Default)]
pub(crate) struct GradientSum {
    sum: Option<GradientsParams>,
    next: usize,
    early: BTreeMap<usize, GradientsParams>,
}

impl GradientSum {
    /// Takes a micro-batch's gradients in.
    pub(crate) fn add<M: Module>(&mut self, micro_batch: usize, new: GradientsParams, model: &M) {
        self.early.insert(micro_batch, new);
        while let Some(new) = self.early.remove(&self.next) {
            self.next += 1;
            self.sum = Some(match self.sum.take() {
                Some(sum) => added(sum, new, model),
                None => new,
            });
        }
    }

    /// The sum, and a fresh start.
    pub(crate) fn take(&mut self) -> GradientsParams {
        let sum = std::mem::take(self).sum;
        sum.unwrap_or_default()
    }
}

/// `sum + new`, parameter by parameter.
pub(crate) fn added<M: Module>(
    sum: GradientsParams,
    new: GradientsParams,
    model: &M,
) -> GradientsParams {
    struct Add {
        sum: GradientsParams,
        new: GradientsParams,
        seen: HashSet<ParamId>,
    }
    impl ModuleVisitor for Add {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if !self.seen.insert(param.id) {
                return;
            }
            let Some(new) = self.new.remove::<D>(param.id) else {
                return;
            };
            let total = match self.sum.remove::<D>(param.id) {
                Some(sum) => sum + new,
                None => new,
            };
            self.sum.register(param.id, total);
        }
    }
    let mut add = Add {
        sum,
        new,
        seen: HashSet::new(),
    };
    model.visit(&mut add);
    add.sum
}
