//! [`Parallelism`]: what ranks share of a model and its optimizer.

use burn::tensor::Bytes;
use burn::train::{Learner, LearnerModel};

use super::{GradientReduction, RankLearner};
use crate::data_parallel::BucketSizes;
use crate::error::Result;
use crate::group::ProcessGroup;

/// What a [`RankLearner`] is made of.
pub struct RankStart<'a, M: LearnerModel> {
    /// The user's. Its optimizer may have a state, of a checkpoint.
    pub learner: &'a mut Learner<M>,
    /// The learner's model, maybe with layers that know the group.
    pub model: M,
    /// The ranks.
    pub group: &'a ProcessGroup,
    /// What [`Distributed`](super::Distributed) was told.
    pub settings: StepSettings,
    /// The state of the learner's optimizer as a record's bytes; `None` if it has none yet.
    pub optimizer_state: Option<Bytes>,
}

impl<M: LearnerModel> std::fmt::Debug for RankStart<'_, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RankStart")
            .field("group", &self.group)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// How gradients become a step.
#[derive(Debug, Clone, Copy, Default)]
pub struct StepSettings {
    /// Mean or sum over ranks.
    pub reduction: GradientReduction,
    /// Sizes of gradient buckets; `None`: those of the parallelism.
    pub bucket_sizes: Option<BucketSizes>,
    /// The norm to scale gradients down to.
    pub max_grad_norm: Option<f64>,
}

impl StepSettings {
    /// What a mean over all `ranks` is multiplied by, when only `active` of them had a batch, if anything.
    pub fn rank_factor(&self, active: usize, ranks: usize) -> Option<f64> {
        match self.reduction {
            GradientReduction::Sum => None,
            GradientReduction::Mean => (active < ranks).then(|| ranks as f64 / active as f64),
        }
    }
}

/// What ranks share of a model and its optimizer, where it is not plain data parallelism: for
/// [`Distributed::parallelism`](super::Distributed::parallelism). `burn_zero::Zero` is one.
pub trait Parallelism<M: LearnerModel>: Send + Sync {
    /// Whether [`start`](Self::start) wants the state of the learner's optimizer; to read it, the model is copied.
    fn reads_optimizer_state(&self) -> bool;

    /// Makes a rank's share. Collective.
    ///
    /// # Errors
    /// [`DistError::Config`](crate::DistError::Config) for what it cannot do with this learner; else what the
    /// group met.
    fn start(&self, start: RankStart<'_, M>) -> Result<Box<dyn RankLearner<M>>>;
}
