//! [`OnFirstRank`]: the strategy on the rank that has the dashboard.

use std::sync::{Arc, Mutex};

use burn::train::renderer::CliMetricsRenderer;
use burn::train::{
    InferenceStep, Interruption, Learner, LearnerModel, LearningResult, SupervisedLearningStrategy,
    SupervisedTrainingEventProcessor, TrainStep, TrainingComponents, TrainingError,
};

use super::learning_strategy::Loader;
use super::{Distributed, RankOutput};

/// How training ended. A dashboard that closes makes the interrupter forget it.
#[derive(Default)]
struct End {
    interrupted: Option<Interruption>,
    error: Option<Arc<TrainingError>>,
    failure: Option<String>,
}

/// The strategy with Burn's own frame around it: the dashboard's start and end, and the summary.
pub(super) struct OnFirstRank<'a, M> {
    strategy: &'a Distributed<M>,
    end: Mutex<End>,
}

impl<'a, M: LearnerModel> OnFirstRank<'a, M> {
    pub(super) fn new(strategy: &'a Distributed<M>) -> Self {
        Self {
            strategy,
            end: Mutex::default(),
        }
    }

    /// With the end that training had. A dashboard of a training that failed goes, so that the cause is seen.
    pub(super) fn told(self, mut result: LearningResult<M>) -> LearningResult<M> {
        let end = self.end.into_inner();
        let end = end.expect("invariant: no panic under this lock");
        result.error = result.error.or(end.error);
        result.interrupted = match result.error {
            Some(_) => None,
            None => result.interrupted.or(end.interrupted),
        };
        if result.error.is_some() {
            result.renderer = Box::new(CliMetricsRenderer::new());
        }
        if let Some(failure) = end.failure {
            eprintln!("training ended: {failure}");
        }
        result
    }
}

impl<M: LearnerModel> SupervisedLearningStrategy<M> for OnFirstRank<'_, M>
where
    <M as TrainStep>::Output: RankOutput,
    <M as InferenceStep>::Output: RankOutput,
{
    fn fit(
        &self,
        components: TrainingComponents<M>,
        learner: Learner<M>,
        dataloader_train: Loader<<M as TrainStep>::Input>,
        dataloader_valid: Loader<<M as InferenceStep>::Input>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        let interrupter = components.interrupter.clone();
        let (model, processor, failure) = self.strategy.fit_on_ranks(
            components,
            learner,
            (dataloader_train, dataloader_valid),
            starting_epoch,
        );
        let end = self.end.lock();
        *end.expect("invariant: no panic under this lock") = End {
            interrupted: interrupter.interruption(),
            error: interrupter.error(),
            failure,
        };
        (model, processor)
    }
}
