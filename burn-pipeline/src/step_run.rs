//! [`Run`]: one step under way, a match arm per action.

use std::collections::HashMap;
use std::time::SystemTime;

use burn::optim::GradientsParams;
use burn_dist::Result;

use crate::gradient_sum::GradientSum;
use crate::kept::Kept;
use crate::stage_passes::StagePasses;
use crate::{
    Action, ActionKind, ActionSpan, Activation, PipelineLinks, PipelineStage, PipelineStep,
};

/// One step under way.
pub(crate) struct Run<'a, S: PipelineStage> {
    pub(crate) passes: StagePasses<'a, S>,
    pub(crate) own: &'a [usize],
    pub(crate) num_stages: usize,
    pub(crate) kept: HashMap<(usize, usize), Kept>,
    /// What a stage gave to a neighbour on this rank: stage that gets it, forward or not, micro-batch.
    pub(crate) here: HashMap<(usize, bool, usize), Vec<Activation>>,
    pub(crate) sums: Vec<GradientSum>,
    pub(crate) gradients: Vec<Option<GradientsParams>>,
    pub(crate) losses: Vec<Option<f64>>,
    pub(crate) live: Vec<usize>,
    pub(crate) peak: Vec<usize>,
    pub(crate) spans: Vec<ActionSpan>,
    /// When the action under way had what it waits for.
    pub(crate) ready: Option<SystemTime>,
}

impl<S: PipelineStage> Run<'_, S> {
    /// Carries an action out.
    pub(crate) fn act(&mut self, action: Action, links: &mut PipelineLinks) -> Result<()> {
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
                self.weights(slot, place);
                Ok(())
            }
            ActionKind::BackwardInput => self.backward(slot, place, links),
            ActionKind::BackwardWeight => {
                self.weights(slot, place);
                Ok(())
            }
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
        self.ready = Some(SystemTime::now());
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
        self.ready = Some(SystemTime::now());
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
    fn weights(&mut self, slot: usize, place: (usize, usize)) {
        let kept = self.kept.remove(&place);
        let kept = kept.expect("invariant: the input's part has run");
        let stage = &self.passes.stages[slot];
        let gradients = kept.into_gradients(self.passes.device);
        self.sums[slot].add(place.1, gradients, stage);
        self.live[slot] -= 1;
    }

    pub(crate) fn finish(self, micro_batches: usize) -> PipelineStep {
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
    let buffers = activations
        .into_iter()
        .map(Activation::into_buffer)
        .collect();
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
