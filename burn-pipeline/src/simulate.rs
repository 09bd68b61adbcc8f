//! [`simulate`]: a plan on a virtual clock.

use std::collections::HashMap;

use burn_dist::Result;

use crate::{Action, ActionKind, SchedulePlan, validate};

/// How long a stage's passes take, in any unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StageCosts {
    /// Forward.
    pub forward: f64,
    /// Backward, its input's part.
    pub backward_input: f64,
    /// Backward, its weights' part; a whole backward pass takes both.
    pub backward_weight: f64,
    /// From a stage to its neighbour on another rank.
    pub transfer: f64,
}

impl StageCosts {
    /// Forward one unit, backward two, transfers none, for each stage.
    pub fn units(num_stages: usize) -> Vec<Self> {
        Self::even(num_stages, 1.0)
    }

    /// As [`units`](Self::units), with a forward pass of `forward`.
    pub fn even(num_stages: usize, forward: f64) -> Vec<Self> {
        let costs = Self {
            forward,
            backward_input: forward,
            backward_weight: forward,
            transfer: 0.0,
        };
        vec![costs; num_stages]
    }

    fn of(&self, kind: ActionKind) -> f64 {
        match kind {
            ActionKind::Forward => self.forward,
            ActionKind::Backward => self.backward_input + self.backward_weight,
            ActionKind::BackwardInput => self.backward_input,
            ActionKind::BackwardWeight => self.backward_weight,
            _ => 0.0,
        }
    }
}

/// When an action ran.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeSpan {
    /// The action.
    pub action: Action,
    /// From the start of the step.
    pub start: f64,
    /// From the start of the step.
    pub end: f64,
}

/// A step on the virtual clock.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatedStep {
    /// For each rank, its actions in order.
    pub ranks: Vec<Vec<TimeSpan>>,
    /// From the first start to the last end.
    pub makespan: f64,
    /// For each stage, the most micro-batches whose forward pass had begun and whose backward pass, of
    /// weights too, had not ended.
    pub peak_live: Vec<usize>,
}

impl SimulatedStep {
    /// Idle time over all time, of all ranks.
    pub fn bubble(&self) -> f64 {
        idle_share(&self.ranks, self.makespan)
    }
}

/// The share of `makespan` in which a rank does nothing, of all ranks.
pub(crate) fn idle_share(ranks: &[Vec<TimeSpan>], makespan: f64) -> f64 {
    let spans = ranks.iter().flatten();
    let busy: f64 = spans.map(|span| span.end - span.start).sum();
    let all = makespan * ranks.len() as f64;
    if all > 0.0 { 1.0 - busy / all } else { 0.0 }
}

/// Runs a plan, lowered or not, with these costs of each stage. A rank does one thing at a time, in its
/// order; passes wait for those of their neighbours.
///
/// # Errors
/// [`DistError::Config`](burn_dist::DistError::Config) for a plan that cannot run, with the action that waits
/// for ever.
pub fn simulate(plan: &SchedulePlan, costs: &[StageCosts]) -> Result<SimulatedStep> {
    let mut ends: HashMap<(usize, bool, usize), f64> = HashMap::new();
    let mut clocks = vec![0.0f64; plan.ranks().len()];
    let mut ranks: Vec<Vec<TimeSpan>> = vec![Vec::new(); plan.ranks().len()];
    let rank_of: Vec<Option<usize>> = (0..plan.num_stages()).map(|s| plan.rank_of(s)).collect();
    let mut live = vec![0i64; plan.num_stages()];
    let mut peak = live.clone();
    validate::run(plan, |rank, action| {
        let mut start = clocks[rank];
        if let Some((stage, forward)) = action.input_of(plan.num_stages())
            && let Some(end) = ends.get(&(stage, forward, action.micro_batch))
        {
            let moves = rank_of[stage] != rank_of[action.stage];
            let transfer = if moves { costs[stage].transfer } else { 0.0 };
            start = start.max(end + transfer);
        }
        let end = start + costs[action.stage].of(action.kind);
        match action.kind {
            ActionKind::Forward => {
                ends.insert((action.stage, true, action.micro_batch), end);
                live[action.stage] += 1;
                peak[action.stage] = peak[action.stage].max(live[action.stage]);
            }
            kind if kind.gives_input_gradient() => {
                ends.insert((action.stage, false, action.micro_batch), end);
            }
            _ => {}
        }
        if action.kind.gives_weight_gradient() {
            live[action.stage] -= 1;
        }
        clocks[rank] = end;
        ranks[rank].push(TimeSpan { action, start, end });
    })?;
    Ok(SimulatedStep {
        ranks,
        makespan: clocks.into_iter().fold(0.0, f64::max),
        peak_live: peak.into_iter().map(|peak| peak as usize).collect(),
    })
}
