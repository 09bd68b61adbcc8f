//! [`Parallelism`]: how the batches of ranks become one update.

use burn::optim::GradientsParams;
use burn::train::{Learner, LearnerModel};

use crate::error::Result;
use crate::group::ProcessGroup;

/// What a step's gradients are multiplied by and held to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepScale {
    /// Ranks that had a batch in this step; the others count as zero.
    pub active: usize,
    /// Longest allowed norm over all gradients together.
    pub max_grad_norm: Option<f64>,
}

/// A kind of parallelism that Burn's trainer can run with: who holds what, and what is sent when. Made once,
/// used on every rank.
pub trait Parallelism<M: LearnerModel>: Send + Sync + 'static {
    /// Prepares this rank's model, which is the learner's, maybe with layers that know the group. Collective.
    ///
    /// # Errors
    /// What cannot be trained this way, and what the group met.
    fn start(
        &self,
        learner: &mut Learner<M>,
        model: M,
        group: &ProcessGroup,
    ) -> Result<Box<dyn RankLearner<M>>>;

    /// Whether ranks without a batch can take part in a step.
    fn steps_without_input(&self) -> bool {
        true
    }
}

/// One rank's model between its batches. Its methods are called by all ranks in the same order.
pub trait RankLearner<M: LearnerModel> {
    /// The model to run a training step on.
    fn model(&self) -> &M;

    /// Runs a micro-step whose gradients wait for the step.
    ///
    /// # Errors
    /// What the group met.
    fn accumulate(&mut self, micro_step: &mut dyn FnMut(&M) -> GradientsParams) -> Result<()>;

    /// Ends a step, with the gradients of its last micro-step, if this rank had one. The learner has its
    /// learning rate already. Collective.
    ///
    /// # Errors
    /// What the group met.
    fn step(
        &mut self,
        learner: &mut Learner<M>,
        gradients: Option<GradientsParams>,
        scale: StepScale,
    ) -> Result<()>;

    /// The model to validate with, the same on all ranks. Collective.
    ///
    /// # Errors
    /// What the group met.
    fn valid(&mut self) -> Result<M>;

    /// Brings the learner of the first rank up to date, as a checkpoint of one device has it; `with_state`:
    /// the optimizer's state too. Collective.
    ///
    /// # Errors
    /// What the group met.
    fn write_back(&mut self, learner: &mut Learner<M>, with_state: bool) -> Result<()>;
}
