//! [`validate`]: whether a plan can run and computes everything once.

use std::collections::{HashMap, HashSet, VecDeque};

use burn_dist::{DistError, Result};

use crate::{Action, ActionKind, SchedulePlan};

/// Checks a plan: every stage is on one rank, and for every micro-batch runs forward once, then backward
/// once, whole or in two parts; and no action waits for ever.
///
/// # Errors
/// [`DistError::Config`] that shows the plan with the first wrong action marked.
pub fn validate(plan: &SchedulePlan) -> Result<()> {
    let (stages, micro_batches) = (plan.num_stages(), plan.num_micro_batches());
    if stages == 0 {
        return Err(DistError::config(
            "a schedule without actions",
            "write one line per rank",
        ));
    }
    let mut seen: HashMap<Action, usize> = HashMap::new();
    let mut rank_of: HashMap<usize, usize> = HashMap::new();
    for (rank, actions) in plan.ranks().iter().enumerate() {
        for (index, action) in actions.iter().enumerate() {
            let wrong = |problem: String| Err(at(plan, rank, index, &problem));
            if !action.kind.is_compute() {
                continue;
            }
            let home = *rank_of.entry(action.stage).or_insert(rank);
            if home != rank {
                return wrong(format!("stage {} is on rank {home} already", action.stage));
            }
            if seen.insert(*action, index).is_some() {
                return wrong("it stands twice".into());
            }
            let has = |kind| seen.contains_key(&Action { kind, ..*action });
            let [forward, whole, input] = [
                has(ActionKind::Forward),
                has(ActionKind::Backward),
                has(ActionKind::BackwardInput),
            ];
            let problem = match action.kind {
                ActionKind::Forward => None,
                _ if !forward => Some("its forward pass has not run"),
                ActionKind::Backward if input => Some("it ran in parts already"),
                ActionKind::BackwardInput if whole => Some("it ran whole already"),
                ActionKind::BackwardWeight if !input => Some("its input's part has not run"),
                _ => None,
            };
            if let Some(problem) = problem {
                return wrong(problem.into());
            }
        }
    }
    for stage in 0..stages {
        for micro_batch in 0..micro_batches {
            let has = |kind| seen.contains_key(&Action::new(stage, kind, micro_batch));
            let missing = match has(ActionKind::Forward) {
                false => Some(ActionKind::Forward),
                true if has(ActionKind::Backward) => None,
                true if !has(ActionKind::BackwardInput) => Some(ActionKind::Backward),
                true if !has(ActionKind::BackwardWeight) => Some(ActionKind::BackwardWeight),
                true => None,
            };
            if let Some(kind) = missing {
                let action = Action::new(stage, kind, micro_batch);
                return Err(DistError::config(
                    format!("{action} is missing in the schedule\n{plan}"),
                    "every stage runs forward and backward for every micro-batch",
                ));
            }
        }
    }
    run(plan, |_, _| {})
}

fn at(plan: &SchedulePlan, rank: usize, index: usize, problem: &str) -> DistError {
    let action = plan.ranks()[rank][index];
    DistError::config(
        format!(
            "action {action} of rank {rank} cannot stand there: {problem}\n{}\n",
            plan.marked(rank, index)
        ),
        "move the marked action",
    )
}

/// What has happened in a run of a plan without costs.
#[derive(Default)]
struct Progress {
    /// Passes that have ended: stage, forward or not, micro-batch.
    done: HashSet<(usize, bool, usize)>,
    /// What is under way between two ranks, in order.
    links: HashMap<(usize, usize, bool), VecDeque<(usize, usize)>>,
    /// What was received: by stage, forward or not, micro-batch.
    received: HashSet<(usize, bool, usize)>,
}

/// Runs a plan, telling of each action when all that it waits for has happened. In a lowered plan passes
/// take what was received; sends do not wait, and what is received comes in the order in which it was sent.
pub(crate) fn run(plan: &SchedulePlan, mut each: impl FnMut(usize, Action)) -> Result<()> {
    let stages = plan.num_stages();
    let lowered = plan.actions().any(|action| {
        matches!(
            action.kind,
            ActionKind::RecvForward | ActionKind::RecvBackward
        )
    });
    let rank_of: Vec<usize> = (0..stages)
        .map(|stage| plan.rank_of(stage).unwrap_or(usize::MAX))
        .collect();
    let mut progress = Progress::default();
    let mut next = vec![0; plan.ranks().len()];
    loop {
        let mut moved = false;
        for (rank, actions) in plan.ranks().iter().enumerate() {
            while let Some(action) = actions.get(next[rank]) {
                if !progress.take(*action, stages, &rank_of, lowered) {
                    break;
                }
                each(rank, *action);
                next[rank] += 1;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let waits =
        |(rank, &next): (usize, &usize)| (next < plan.ranks()[rank].len()).then_some((rank, next));
    match next.iter().enumerate().find_map(waits) {
        None => Ok(()),
        Some((rank, index)) => Err(at(plan, rank, index, "it waits for ever")),
    }
}

impl Progress {
    /// Carries an action out, if all that it waits for has happened.
    fn take(&mut self, action: Action, stages: usize, rank_of: &[usize], lowered: bool) -> bool {
        let Action {
            stage, micro_batch, ..
        } = action;
        if let Some((from, forward)) = action.input_of(stages) {
            let travels = lowered && rank_of[from] != rank_of[stage];
            let there = match travels {
                true => self.received.contains(&(stage, forward, micro_batch)),
                false => self.done.contains(&(from, forward, micro_batch)),
            };
            if !there {
                return false;
            }
        }
        let own = |forward| self.done.contains(&(stage, forward, micro_batch));
        let link = |from: usize, to: usize, forward| (rank_of[from], rank_of[to], forward);
        match action.kind {
            ActionKind::Forward => {
                self.done.insert((stage, true, micro_batch));
            }
            ActionKind::Backward | ActionKind::BackwardInput if !own(true) => return false,
            ActionKind::Backward | ActionKind::BackwardInput => {
                self.done.insert((stage, false, micro_batch));
            }
            ActionKind::BackwardWeight => return own(false),
            ActionKind::SendForward if own(true) && stage + 1 < stages => {
                let link = self.links.entry(link(stage, stage + 1, true));
                link.or_default().push_back((stage + 1, micro_batch));
            }
            ActionKind::SendBackward if own(false) && stage > 0 => {
                let link = self.links.entry(link(stage, stage - 1, false));
                link.or_default().push_back((stage - 1, micro_batch));
            }
            ActionKind::SendForward | ActionKind::SendBackward => return false,
            ActionKind::RecvForward | ActionKind::RecvBackward => {
                let forward = action.kind == ActionKind::RecvForward;
                let from = match forward {
                    true => stage.checked_sub(1),
                    false => Some(stage + 1).filter(|&next| next < stages),
                };
                let Some(from) = from else { return false };
                let link = self.links.entry(link(from, stage, forward)).or_default();
                if link.front() != Some(&(stage, micro_batch)) {
                    return false;
                }
                link.pop_front();
                self.received.insert((stage, forward, micro_batch));
            }
            ActionKind::ReduceGrad => {}
        }
        true
    }
}
