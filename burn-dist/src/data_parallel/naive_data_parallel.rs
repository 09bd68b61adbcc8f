//! [`NaiveDataParallel`]: the plain twin of [`DataParallel`](super::DataParallel).

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Tensor, TensorData};

use crate::communicator::{HostBuffer, Operation, ReduceOp};
use crate::error::{DistError, Result};
use crate::group::ProcessGroup;

/// Data parallelism without buckets, hooks or overlap: after the backward pass each parameter's
/// gradient is all-reduced on its own. It exists to check the fast one against.
///
/// A parameter without a gradient on this rank counts as zeros; it gets none only if no rank has
/// one. 16-bit gradients are reduced in f32.
#[derive(Debug, Clone)]
pub struct NaiveDataParallel {
    group: ProcessGroup,
    micro_steps: usize,
}

impl NaiveDataParallel {
    /// Over the ranks of `group`.
    pub fn new(group: &ProcessGroup) -> Self {
        Self {
            group: group.clone(),
            micro_steps: 1,
        }
    }

    /// For gradients that are sums over as many micro-steps: the mean is over these too, divided
    /// once after the sum.
    pub fn with_micro_steps(mut self, micro_steps: usize) -> Self {
        self.micro_steps = micro_steps;
        self
    }

    /// The mean over ranks of every gradient. Collective: an all_reduce per trained parameter and
    /// one for the flags of use.
    ///
    /// # Errors
    /// What the group met.
    pub fn sync<M: Module>(
        &self,
        mut grads: GradientsParams,
        model: &M,
    ) -> Result<GradientsParams> {
        let mut flags = Flags {
            grads: &grads,
            seen: HashSet::new(),
            flags: Vec::new(),
        };
        model.visit(&mut flags);
        let used = self.group.all_reduce_values(flags.flags, ReduceOp::Max)?;
        let mut reduce = Reduce {
            parallel: self,
            grads: &mut grads,
            used: used.into_iter(),
            seen: HashSet::new(),
            failure: None,
        };
        model.visit(&mut reduce);
        match reduce.failure {
            Some(failure) => Err(failure),
            None => Ok(grads),
        }
    }
}

struct Flags<'a> {
    grads: &'a GradientsParams,
    seen: HashSet<ParamId>,
    flags: Vec<u8>,
}

impl ModuleVisitor for Flags<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.seen.insert(param.id) {
            let used = self.grads.get::<D>(param.id).is_some();
            self.flags.push(u8::from(used));
        }
    }
}

struct Reduce<'a> {
    parallel: &'a NaiveDataParallel,
    grads: &'a mut GradientsParams,
    used: std::vec::IntoIter<u8>,
    /// A shared parameter is visited wherever it stands, and reduced once.
    seen: HashSet<ParamId>,
    failure: Option<DistError>,
}

impl ModuleVisitor for Reduce<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.seen.insert(param.id) {
            return;
        }
        if self.used.next() != Some(1) || self.failure.is_some() {
            return;
        }
        let base = param.base();
        let (device, dtype) = (base.device().inner(), base.dtype());
        let gradient = self
            .grads
            .remove::<D>(param.id)
            .unwrap_or_else(|| Tensor::zeros(base.shape(), (&device, dtype)));
        let wide = HostBuffer::sum_dtype(dtype);
        let input = HostBuffer::from(gradient.cast(wide).into_data());
        let (group, micro_steps) = (&self.parallel.group, self.parallel.micro_steps);
        let (op, divisor) = match micro_steps {
            1 => (ReduceOp::Mean, 1),
            _ => (ReduceOp::Sum, group.size() * micro_steps),
        };
        match group.run(Operation::AllReduce(op), input) {
            Ok(mean) => {
                let mean = Tensor::<D>::from_data(TensorData::from(mean), (&device, wide));
                let mean = mean.div_scalar(divisor as f64);
                self.grads.register(param.id, mean.cast(dtype));
            }
            Err(failure) => self.failure = Some(failure),
        }
    }
}
