//! [`PipelineStep`]: what a step gives.

use std::time::SystemTime;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn_dist::data_parallel::mean_gradients;

use crate::Action;
use crate::gradient_sum::added;

/// What a step gives.
#[derive(Debug)]
pub struct PipelineStep {
    /// The micro-batches' losses, on the rank of the last stage.
    pub losses: Option<Vec<f64>>,
    /// For each of this rank's stages, its gradients, added up over micro-batches in their order.
    pub gradients: Vec<GradientsParams>,
    /// Number of micro-batches.
    pub micro_batches: usize,
    /// For each of this rank's stages, the most micro-batches that lived at once.
    pub peak_live: Vec<usize>,
    /// When each of this rank's actions ran, in the order of the plan.
    pub spans: Vec<ActionSpan>,
}

/// When an action ran on this rank, by the system's clock.
#[derive(Debug, Clone, Copy)]
pub struct ActionSpan {
    /// The action.
    pub action: Action,
    /// Its start: when what it takes from another stage was there.
    pub start: SystemTime,
    /// Its end.
    pub end: SystemTime,
}

impl PipelineStep {
    /// The gradients of the mean over micro-batches, one division for each. Local.
    pub fn mean_gradients<S: Module>(self, stages: &[S]) -> Vec<GradientsParams> {
        let count = self.micro_batches;
        let pairs = self.gradients.into_iter().zip(stages);
        pairs
            .map(|(gradients, stage)| mean_gradients(gradients, count, stage))
            .collect()
    }

    /// The gradients of all stages of this rank together.
    pub fn all_gradients<S: Module>(self, stages: &[S]) -> GradientsParams {
        let mut all = GradientsParams::new();
        for (gradients, stage) in self.gradients.into_iter().zip(stages) {
            all = added(all, gradients, stage);
        }
        all
    }
}
