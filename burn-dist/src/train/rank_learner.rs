//! [`RankLearner`]: one rank's share of a model that is trained.

use burn::optim::GradientsParams;
use burn::train::{Learner, LearnerModel};

use crate::error::Result;

/// A rank's forward and backward pass over one batch.
pub struct Pass<'a, M> {
    /// To be called once, with the model to run on; leaves its gradients.
    pub run: &'a mut dyn FnMut(&M) -> GradientsParams,
    /// `false`: it only keeps other ranks company, and its gradients count for nothing.
    pub counts: bool,
}

impl<M> std::fmt::Debug for Pass<'_, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pass")
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

/// One rank's share of a model between its batches, and how it steps.
///
/// All ranks call the same methods in the same order: each may be collective. An error ends training on all
/// ranks.
pub trait RankLearner<M: LearnerModel> {
    /// Whether passes call other ranks, so that all ranks need equally many: a rank without a batch then runs
    /// one that does not count.
    fn needs_equal_passes(&self) -> bool {
        false
    }

    /// Runs a micro-step whose gradients wait for the step. `None`: there is no batch for this rank.
    ///
    /// # Errors
    /// What the group met.
    fn accumulate(&mut self, pass: Option<Pass<'_, M>>) -> Result<()>;

    /// Runs the last micro-step of a step, and the step, at the learner's present learning rate. `None`: this
    /// rank has no batch, or the step's micro-steps are all done. `active` ranks had a batch in its first.
    ///
    /// # Errors
    /// What the group met.
    fn step(
        &mut self,
        learner: &mut Learner<M>,
        pass: Option<Pass<'_, M>>,
        active: usize,
    ) -> Result<()>;

    /// The model to validate with: what is not trained is the first rank's on all.
    ///
    /// # Errors
    /// What the group met.
    fn valid(&self) -> Result<M>;

    /// Gives the learner the model as one device would have it, if it is wanted on this rank.
    ///
    /// # Errors
    /// What the group met.
    fn write_back(&self, learner: &mut Learner<M>, wanted: bool) -> Result<()>;

    /// Gives the first rank's learner the optimizer's state as one device would have it.
    ///
    /// # Errors
    /// What the group met.
    fn write_back_optimizer(&self, learner: &mut Learner<M>) -> Result<()>;

    /// Training has failed: gives the learner what this rank has of the model. Local.
    fn give_up(&self, learner: &mut Learner<M>);

    /// A checkpoint was made of what was written back. Local.
    fn let_go(&self, learner: &mut Learner<M>);
}
