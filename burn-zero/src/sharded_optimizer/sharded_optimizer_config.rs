//! [`ShardedOptimizerConfig`]: how a sharded optimizer works.

use burn::optim::ModuleOptimizer;
use burn::tensor::{DType, Device};
use burn_dist::data_parallel::BucketSizes;
use burn_dist::{DistError, ProcessGroup, Result};

use crate::{LossScale, MixedPrecisionPolicy, ModelParallel};

/// How a [`ShardedOptimizer`](crate::ShardedOptimizer) works.
#[derive(Debug, Clone)]
pub struct ShardedOptimizerConfig {
    /// Target sizes of the units in which gradients are reduced and parameters gathered.
    pub bucket_sizes: BucketSizes,
    /// `true`: the gradient is the mean over ranks and micro-steps; `false` (default): the mean over
    /// ranks of the sum over micro-steps.
    pub average_micro_steps: bool,
    /// `true`: the gradient is the sum over ranks in place of the mean.
    pub sum_ranks: bool,
    /// Element types; `reduce` is f32 for 16-bit parameters. Master weights need an element-wise
    /// optimizer.
    pub mixed_precision: MixedPrecisionPolicy,
    /// Gradients are scaled down to this norm, over all parameters together.
    pub max_grad_norm: Option<f64>,
    /// The groups over which the model's layers are split: a norm, and a decision to skip a step, goes over
    /// all their parts.
    pub model_parallel: ModelParallel,
    /// The scale that the caller's losses carry, for f16: see
    /// [`ShardedOptimizer::scale`](crate::ShardedOptimizer::scale).
    pub loss_scale: Option<LossScale>,
    /// Where the optimizer's state and its copy of the parameters lie, and where the step runs:
    /// `Some(Device::flex())` keeps them in host memory while the model is on another device. On the
    /// model's own device it changes nothing but for that copy. Needs an element-wise optimizer.
    pub offload: Option<Device>,
}

impl Default for ShardedOptimizerConfig {
    /// Units of 1 MB, then 4 MB: a gradient is let go with its unit, so that small units keep little
    /// at once.
    fn default() -> Self {
        Self {
            bucket_sizes: BucketSizes {
                first: 1_000_000,
                rest: 4_000_000,
            },
            average_micro_steps: false,
            sum_ranks: false,
            mixed_precision: MixedPrecisionPolicy::default(),
            max_grad_norm: None,
            model_parallel: ModelParallel::new(),
            loss_scale: None,
            offload: None,
        }
    }
}

impl ShardedOptimizerConfig {
    /// Refuses what an optimizer cannot do.
    pub(super) fn check(
        &self,
        optimizer: &ModuleOptimizer,
        element_wise: bool,
        group: &ProcessGroup,
    ) -> Result<()> {
        let rank = group.rank();
        if !optimizer.to_record().is_empty() {
            return Err(DistError::config(
                format!(
                    "rank {rank}: this optimizer has stepped before: its state is of whole parameters"
                ),
                "wrap the model first, and give it a new optimizer",
            ));
        }
        let precision = self.mixed_precision;
        let needs = precision != MixedPrecisionPolicy::default() || self.offload.is_some();
        if needs && !element_wise {
            return Err(DistError::config(
                format!(
                    "rank {rank}: master weights and offload need an element-wise optimizer, this one steps whole parameters"
                ),
                "build it as such, as `AdamWConfig::new().build()`, or leave those settings out",
            ));
        }
        if precision.reduce.is_some_and(|dtype| dtype != DType::F32) {
            return Err(DistError::config(
                format!("rank {rank}: stages 1 and 2 reduce 16-bit gradients in f32 only"),
                "leave MixedPrecisionPolicy::reduce out, or use FullyShard",
            ));
        }
        Ok(())
    }
}
