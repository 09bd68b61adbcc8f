//! [`PipelineRuntime`]: runs a schedule.

use std::collections::HashMap;
use std::time::SystemTime;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Device;
use burn_dist::random::RandomStream;
use burn_dist::{DistError, Result};

use crate::gradient_sum::{GradientSum, mean};
use crate::kept::Kept;
use crate::stage_passes::StagePasses;
use crate::{
    Action, ActionKind, Activation, PipelineLinks, PipelineStage, Recompute, SchedulePlan, lower,
};

/// Runs a schedule's actions on this rank's stages.
///
/// *What is split:* the model, by blocks, and the batch, in micro-batches. *What moves* per step and
/// micro-batch: the activations between stages forward, and their gradients backward, beside the passes.
/// Gradients and losses are added up in the order of micro-batches: the numbers are those of one rank that
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
    /// Its start.
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
            .map(|(gradients, stage)| mean(gradients, count, stage))
            .collect()
    }

    /// The gradients of all stages of this rank together.
    pub fn all_gradients<S: Module>(self, stages: &[S]) -> GradientsParams {
        let mut all = GradientsParams::new();
        for (gradients, stage) in self.gradients.into_iter().zip(stages) {
            all = crate::gradient_sum::added(all, gradients, stage);
        }
        all
    }
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
        };
        for action in actions {
            guard.at = Some(action);
            let start = SystemTime::now();
            if let Err(cause) = run.act(action, guard.links) {
                return Err(guard.fail(action, cause));
            }
            let end = SystemTime::now();
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

/// One step under way.
struct Run<'a, S: PipelineStage> {
    passes: StagePasses<'a, S>,
    own: &'a [usize],
    num_stages: usize,
    kept: HashMap<(usize, usize), Kept>,
    /// What a stage gave to a neighbour on this rank: stage that gets it, forward or not, micro-batch.
    here: HashMap<(usize, bool, usize), Vec<Activation>>,
    sums: Vec<GradientSum>,
    gradients: Vec<Option<GradientsParams>>,
    losses: Vec<Option<f64>>,
    live: Vec<usize>,
    peak: Vec<usize>,
    spans: Vec<ActionSpan>,
}

impl<S: PipelineStage> Run<'_, S> {
    fn act(&mut self, action: Action, links: &mut PipelineLinks) -> Result<()> {
        for receiver in [&mut links.from_before, &mut links.from_next] {
            receiver
                .iter_mut()
                .try_for_each(|receiver| receiver.poll())?;
        }
        let Action {
            stage, micro_batch, ..
        } = action;
        let slot = self.own.iter().position(|own| *own == stage);
        let slot = slot.expect("invariant: the plan names this rank's stages");
        let place = (stage, micro_batch);
        match action.kind {
            ActionKind::Forward => self.forward(slot, place, links),
            ActionKind::Backward => {
                self.backward(slot, place, links)?;
                self.weights(slot, place)
            }
            ActionKind::BackwardInput => self.backward(slot, place, links),
            ActionKind::BackwardWeight => self.weights(slot, place),
            ActionKind::SendForward => {
                let outputs = self.here.remove(&(stage + 1, true, micro_batch));
                let receive = Action::new(stage + 1, ActionKind::RecvForward, micro_batch);
                send(&mut links.to_next, receive, outputs)
            }
            ActionKind::SendBackward => {
                let gradients = self.here.remove(&(stage - 1, false, micro_batch));
                let receive = Action::new(stage - 1, ActionKind::RecvBackward, micro_batch);
                send(&mut links.to_before, receive, gradients)
            }
            ActionKind::RecvForward => expect(&mut links.from_before, action),
            ActionKind::RecvBackward => expect(&mut links.from_next, action),
            ActionKind::ReduceGrad => {
                self.gradients[slot] = Some(self.sums[slot].take());
                Ok(())
            }
        }
    }

    /// What a pass takes from another stage.
    fn incoming(
        &mut self,
        (stage, micro_batch): (usize, usize),
        forward: bool,
        links: &mut PipelineLinks,
    ) -> Result<Vec<Activation>> {
        if let Some(here) = self.here.remove(&(stage, forward, micro_batch)) {
            return Ok(here);
        }
        let (receiver, kind) = match forward {
            true => (&mut links.from_before, ActionKind::RecvForward),
            false => (&mut links.from_next, ActionKind::RecvBackward),
        };
        let receiver = receiver
            .as_mut()
            .expect("invariant: a lowered plan receives over a link");
        let buffers = receiver.take(Action::new(stage, kind, micro_batch))?;
        let device = self.passes.device;
        let arrived = buffers.into_iter();
        Ok(arrived
            .map(|buffer| Activation::from_buffer(buffer, device))
            .collect())
    }

    fn forward(
        &mut self,
        slot: usize,
        place: (usize, usize),
        links: &mut PipelineLinks,
    ) -> Result<()> {
        let (stage, micro_batch) = place;
        self.live[slot] += 1;
        self.peak[slot] = self.peak[slot].max(self.live[slot]);
        let input = match stage {
            0 => Vec::new(),
            _ => self.incoming(place, true, links)?,
        };
        let (output, kept) = self.passes.forward(slot, micro_batch, input)?;
        self.kept.insert(place, kept);
        match stage + 1 < self.num_stages {
            true => {
                self.here.insert((stage + 1, true, micro_batch), output);
            }
            false => self.losses[micro_batch] = Some(StagePasses::<S>::loss(&output)?),
        }
        Ok(())
    }

    fn backward(
        &mut self,
        slot: usize,
        place: (usize, usize),
        links: &mut PipelineLinks,
    ) -> Result<()> {
        let (stage, micro_batch) = place;
        let is_last = stage + 1 == self.num_stages;
        let gradients = match is_last {
            true => None,
            false => Some(self.incoming(place, false, links)?),
        };
        let kept = self.kept.remove(&place);
        let kept = kept.expect("invariant: the forward pass has run");
        let (input_gradients, left) = self.passes.backward(slot, micro_batch, kept, gradients)?;
        self.kept.insert(place, left);
        if stage > 0 {
            self.here
                .insert((stage - 1, false, micro_batch), input_gradients);
        }
        Ok(())
    }

    /// The weights' part, and the end of a micro-batch on its stage.
    fn weights(&mut self, slot: usize, place: (usize, usize)) -> Result<()> {
        let kept = self.kept.remove(&place);
        let kept = kept.expect("invariant: the input's part has run");
        let stage = &self.passes.stages[slot];
        let gradients = kept.into_gradients(self.passes.device);
        self.sums[slot].add(place.1, gradients, stage);
        self.live[slot] -= 1;
        Ok(())
    }

    fn finish(self, micro_batches: usize) -> PipelineStep {
        let losses: Option<Vec<f64>> = self.losses.into_iter().collect();
        let gradients = self.gradients.into_iter();
        PipelineStep {
            losses,
            gradients: gradients.map(Option::unwrap_or_default).collect(),
            micro_batches,
            peak_live: self.peak,
            spans: self.spans,
        }
    }
}

fn send(
    sender: &mut Option<crate::link::Sender>,
    receive: Action,
    activations: Option<Vec<Activation>>,
) -> Result<()> {
    let activations = activations.expect("invariant: a pass runs before its send");
    let buffers = activations.iter().map(Activation::to_buffer).collect();
    let sender = sender
        .as_mut()
        .expect("invariant: a lowered plan sends over a link");
    sender.send(receive, buffers)
}

fn expect(receiver: &mut Option<crate::link::Receiver>, action: Action) -> Result<()> {
    let receiver = receiver
        .as_mut()
        .expect("invariant: a lowered plan receives over a link");
    receiver.expect(action)
}
