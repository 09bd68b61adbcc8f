//! [`PipelineRuntime`]: runs a schedule.

use std::collections::HashMap;
use std::time::SystemTime;

use burn::tensor::Device;
use burn_dist::random::RandomStream;
use burn_dist::{DistError, Result};

use crate::gradient_sum::GradientSum;
use crate::stage_passes::StagePasses;
use crate::step_run::Run;
use crate::{
    Action, ActionSpan, PipelineLinks, PipelineStage, PipelineStep, Recompute, SchedulePlan, lower,
};

/// Runs a schedule's actions on this rank's stages.
///
/// *What is split:* the model, by blocks, and the batch, in micro-batches. *What moves* per step and
/// micro-batch: the activations between stages forward, and their gradients backward, beside the passes.
/// Gradients are added up in the order of micro-batches: the numbers are those of one rank that
/// accumulates them, bit for bit, with every schedule.
#[derive(Debug)]
pub struct PipelineRuntime {
    plan: SchedulePlan,
    links: PipelineLinks,
    device: Device,
    recompute: Recompute,
    random: Option<RandomStream>,
    steps: u64,
}

impl PipelineRuntime {
    /// For a schedule of passes, whose ranks are those of `links`; `device` is where this rank's stages
    /// are, with autodiff.
    ///
    /// # Errors
    /// [`DistError::Config`] for a schedule that is wrong or for another number of ranks.
    pub fn new(plan: &SchedulePlan, links: PipelineLinks, device: &Device) -> Result<Self> {
        if plan.ranks().len() != links.num_ranks() {
            return Err(DistError::config(
                format!(
                    "rank {}: a schedule for {} ranks in a pipeline of {}",
                    links.rank(),
                    plan.ranks().len(),
                    links.num_ranks()
                ),
                "make the schedule for as many ranks",
            ));
        }
        let plan = lower(plan)?;
        for stage in 1..plan.num_stages() {
            let place = |stage| plan.rank_of(stage).expect("invariant: it was validated");
            let (from, to) = (place(stage - 1), place(stage));
            if from != to && to != (from + 1) % links.num_ranks() {
                return Err(DistError::config(
                    format!(
                        "stage {stage} is on rank {to} of the pipeline, the one before it on rank {from}"
                    ),
                    "put a stage on the rank of the one before it, or on the next one",
                ));
            }
        }
        Ok(Self {
            plan,
            links,
            device: device.clone(),
            recompute: Recompute::Nothing,
            random: None,
            steps: 0,
        })
    }

    /// What is computed again instead of kept.
    pub fn recompute(mut self, recompute: Recompute) -> Self {
        self.recompute = recompute;
        self
    }

    /// Where the stages' dropout draws: at a position that depends on the step, the micro-batch and the
    /// block only, so that masks do not depend on schedule, stages or recompute.
    pub fn random(mut self, stream: &RandomStream) -> Self {
        self.random = Some(stream.clone());
        self
    }

    /// The schedule with what moves between ranks.
    pub fn plan(&self) -> &SchedulePlan {
        &self.plan
    }

    /// The links.
    pub fn links(&self) -> &PipelineLinks {
        &self.links
    }

    /// Numbers of this rank's stages, in their order.
    pub fn stages(&self) -> Vec<usize> {
        self.plan.stages_of(self.links.index())
    }

    /// Runs a step. `stages` are this rank's, in the order of [`stages`](Self::stages); every rank has all
    /// micro-batches, and `weights` says what each counts
    /// ([`MicroBatches::weights`](crate::MicroBatches::weights)). Collective over the pipeline.
    ///
    /// # Errors
    /// [`DistError::Action`] naming stage, micro-batch and action, on every rank of the pipeline, if a
    /// stage fails, panics, or a neighbour is lost; [`DistError::Config`] before anything is sent for
    /// numbers of stages or micro-batches that are not the schedule's.
    pub fn step<S: PipelineStage>(
        &mut self,
        stages: &[S],
        micro_batches: &[S::Batch],
        weights: &[f64],
    ) -> Result<PipelineStep> {
        let own = self.stages();
        let expected = (own.len(), self.plan.num_micro_batches());
        let got = (stages.len(), micro_batches.len());
        if got != expected || weights.len() != got.1 {
            return Err(DistError::config(
                format!(
                    "rank {}: {} stages, {} micro-batches and {} weights for a schedule of {} stages on this rank and {} micro-batches",
                    self.links.rank(),
                    got.0,
                    got.1,
                    weights.len(),
                    expected.0,
                    expected.1
                ),
                "bring what the schedule was made for",
            ));
        }
        let actions = self.plan.ranks()[self.links.index()].clone();
        let num_stages = self.plan.num_stages();
        let step = self.steps;
        self.steps += 1;
        let passes = StagePasses {
            device: &self.device,
            recompute: self.recompute,
            random: self.random.as_ref(),
            step,
            again: stages.iter().map(|_| None).collect(),
            stages,
            micro_batches,
            weights,
        };
        let mut guard = Guard {
            links: &mut self.links,
            at: None,
        };
        let mut run = Run {
            passes,
            own: &own,
            num_stages,
            kept: HashMap::new(),
            here: HashMap::new(),
            sums: own.iter().map(|_| GradientSum::default()).collect(),
            gradients: own.iter().map(|_| None).collect(),
            losses: vec![None; micro_batches.len()],
            live: vec![0; own.len()],
            peak: vec![0; own.len()],
            spans: Vec::with_capacity(actions.len()),
            ready: None,
        };
        for action in actions {
            guard.at = Some(action);
            let start = SystemTime::now();
            if let Err(cause) = run.act(action, guard.links) {
                return Err(guard.fail(action, cause));
            }
            let end = SystemTime::now();
            let start = run.ready.take().unwrap_or(start);
            run.spans.push(ActionSpan { action, start, end });
        }
        if let Some(last) = run.spans.last().map(|span| span.action)
            && let Err(cause) = settle(guard.links)
        {
            return Err(guard.fail(last, cause));
        }
        guard.at = None;
        drop(guard);
        Ok(run.finish(micro_batches.len()))
    }
}

/// Waits until what was sent is there.
fn settle(links: &mut PipelineLinks) -> Result<()> {
    for sender in [&mut links.to_next, &mut links.to_before]
        .into_iter()
        .flatten()
    {
        sender.check(true)?;
    }
    Ok(())
}

/// Tells the other ranks when this one fails or panics.
struct Guard<'a> {
    links: &'a mut PipelineLinks,
    at: Option<Action>,
}

impl Guard<'_> {
    fn fail(&mut self, action: Action, cause: DistError) -> DistError {
        self.at = None;
        let error = DistError::Action {
            rank: self.links.rank(),
            stage: action.stage,
            micro_batch: action.micro_batch,
            action: action.to_string(),
            cause: Box::new(cause),
        };
        for group in self.links.groups() {
            if group.check().is_ok() {
                group.abort(error.clone());
            }
        }
        error
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if let Some(action) = self.at {
            let cause = DistError::config("it panicked", "its message is in this rank's output");
            self.fail(action, cause);
        }
    }
}
