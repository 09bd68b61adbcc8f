//! [`SyncBatchNorm`]: statistics over the batches of all ranks.

use burn::module::{Flag, Module, Param, RunningState};
use burn::nn::BatchNorm;
use burn::tensor::{DType, Tensor};

use crate::collectives::all_gather;
use crate::error::{DistError, Result};
use crate::group::ProcessGroup;

/// Burn's [`BatchNorm`] with the statistics of the batches of all ranks of a group: `n` ranks with `B` items each
/// normalize as one device does with `nB`.
///
/// Parameters, running statistics, their names and thus records are those of `BatchNorm`, which it is made from
/// and goes back to. Without a group, in a group of one, in evaluation and when frozen it computes what
/// `BatchNorm` does, bit for bit. Ranks may have unequally many items, or none.
///
/// Forward, in training: an all_gather of `2C+1` numbers (mean, sum of squared deviations, count), `C` being the
/// features, merged without differences of large sums (Chan, Golub, LeVeque 1979, the updating formula for
/// sums of squares). Backward: a reduce_scatter of as many. All ranks of the group run equally many forward
/// passes in training; in Burn's trainer, choose `LastRound::Drop` or `LastRound::Repeat`, since by default a rank
/// without input runs none.
///
/// Gradients are those of the sum of all ranks' losses, which `DataParallel` then makes a mean of.
///
/// ```no_run
/// # use burn::{nn::BatchNormConfig, tensor::{Device, Tensor}};
/// # use burn_dist::{ProcessGroup, Result};
/// use burn_dist::batch_norm::SyncBatchNorm;
/// # fn example(group: ProcessGroup, device: Device, maps: Tensor<4>) -> Result<()> {
/// let norm = SyncBatchNorm::from(BatchNormConfig::new(16).init(&device)).over(&group);
/// let maps = norm.forward(maps)?;
/// # Ok(()) }
/// ```
#[derive(Module, Debug)]
pub struct SyncBatchNorm {
    /// `[C]`, what normalized values are multiplied by.
    pub gamma: Param<Tensor<1>>,
    /// `[C]`, what is added then.
    pub beta: Param<Tensor<1>>,
    /// Whether the layer takes part in training.
    pub training: Param<Flag>,
    /// `[C]`, for evaluation.
    pub running_mean: RunningState<Tensor<1>>,
    /// `[C]`, for evaluation.
    pub running_var: RunningState<Tensor<1>>,
    /// The weight of a batch in the running statistics.
    pub momentum: f64,
    /// Added to variances.
    pub epsilon: f64,
    #[module(skip)]
    group: Option<ProcessGroup>,
}

impl From<BatchNorm> for SyncBatchNorm {
    fn from(norm: BatchNorm) -> Self {
        Self {
            gamma: norm.gamma,
            beta: norm.beta,
            training: norm.training,
            running_mean: norm.running_mean,
            running_var: norm.running_var,
            momentum: norm.momentum,
            epsilon: norm.epsilon,
            group: None,
        }
    }
}

impl From<SyncBatchNorm> for BatchNorm {
    fn from(norm: SyncBatchNorm) -> Self {
        Self {
            gamma: norm.gamma,
            beta: norm.beta,
            training: norm.training,
            running_mean: norm.running_mean,
            running_var: norm.running_var,
            momentum: norm.momentum,
            epsilon: norm.epsilon,
        }
    }
}

impl SyncBatchNorm {
    /// The ranks whose batches are normalized together: those that the batch is split over.
    pub fn over(mut self, group: &ProcessGroup) -> Self {
        self.group = Some(group.clone());
        self
    }

    /// `[B, C, ..] -> [B, C, ..]`; `B` may differ from rank to rank.
    ///
    /// # Errors
    /// [`DistError::Config`] for an input of other features, refused before anything is sent; else what the
    /// group met.
    #[track_caller]
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Result<Tensor<D>> {
        let features = self.gamma.shape().dims::<1>()[0];
        let shape = input.dims();
        if shape.get(1) != Some(&features) {
            let rank = self.group.as_ref().map_or(0, ProcessGroup::rank);
            return Err(DistError::config(
                format!(
                    "rank {rank}: an input of shape {shape:?} for a normalization of {features} features"
                ),
                "the second axis of the input is that of features",
            ));
        }
        let trains = input.device().is_autodiff() && self.training.is_enabled();
        match &self.group {
            Some(group) if trains && group.size() > 1 => self.forward_train(input, group),
            _ => Ok(BatchNorm::from(self.clone()).forward(input)),
        }
    }

    #[track_caller]
    fn forward_train<const D: usize>(
        &self,
        input: Tensor<D>,
        group: &ProcessGroup,
    ) -> Result<Tensor<D>> {
        let [features] = self.gamma.shape().dims();
        let (shape, dtype) = (input.dims(), input.dtype());
        let count = shape.iter().product::<usize>() / features;
        // Sums of squares leave the range of f16.
        let wide = match dtype {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        let input = input.cast(wide);
        let rows: Tensor<2> = input.clone().swap_dims(0, 1).reshape([features, count]);
        let device = input.device();
        // A rank may have no item: it counts for nothing, and must not be 0/0. By a tensor, since Burn's backward pass
        // of `div_scalar` rounds the inverse to f32.
        let divisor = Tensor::full([1, 1], count.max(1) as f64, (&device, wide));
        let mean = rows.clone().sum_dim(1) / divisor;
        let deviations = rows - mean.clone();
        let squares = (deviations.clone() * deviations).sum_dim(1);
        let own = Tensor::cat(
            vec![
                mean.reshape([features]),
                squares.reshape([features]),
                Tensor::full([1], count as f64, (&device, wide)),
            ],
            0,
        );
        let all = all_gather(own.reshape([1, 2 * features + 1]), 0, group)?;
        let ranks = group.size();
        let part = |columns| all.clone().slice([0..ranks, columns]);
        let means = part(0..features);
        let squares = part(features..2 * features);
        let counts = part(2 * features..2 * features + 1).detach();
        let total = counts.clone().sum_dim(0);
        let mean = (means.clone() * counts.clone()).sum_dim(0) / total.clone();
        let between = means - mean.clone();
        let squares = squares + between.clone() * between * counts;
        let variance = squares.sum_dim(0) / total;

        self.update(&self.running_mean, mean.clone());
        self.update(&self.running_var, variance.clone());

        let mut per_feature = [1; D];
        per_feature[1] = features;
        let along = |values: Tensor<2>| -> Tensor<D> { values.reshape(per_feature) };
        let scale = along(variance.add_scalar(self.epsilon).sqrt());
        let normalized = (input - along(mean)) / scale;
        let gamma = along(self.gamma.val().cast(wide).reshape([1, features]));
        let beta = along(self.beta.val().cast(wide).reshape([1, features]));
        Ok((normalized * gamma + beta).cast(dtype))
    }

    /// As Burn's layer does.
    fn update(&self, state: &RunningState<Tensor<1>>, value: Tensor<2>) {
        let old = state.value_sync().to_device(&value.device());
        let value = value.detach().reshape(old.dims()).cast(old.dtype());
        let new = old.mul_scalar(1.0 - self.momentum) + value.mul_scalar(self.momentum);
        state.update(new.detach());
    }
}
