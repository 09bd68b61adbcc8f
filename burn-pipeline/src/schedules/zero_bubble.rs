//! ZB-H1: backward passes in two parts. Rank `r` starts as in 1F1B and computes what the weights need `r`
//! micro-batches late: later ranks fill with it the end of the step, where they would be idle, and no rank
//! keeps more than 1F1B's first. (arXiv 2401.10241, section 2.2.)

use super::PipelineShape;
use crate::{Action, ActionKind};

pub(super) fn actions(shape: PipelineShape, rank: usize) -> Vec<Action> {
    let m = shape.micro_batches;
    let action = |kind, m| Action::new(rank, kind, m);
    let mut forward = (shape.ranks - rank).min(m);
    let mut actions: Vec<Action> = (0..forward)
        .map(|m| action(ActionKind::Forward, m))
        .collect();
    for input in 0..m {
        actions.push(action(ActionKind::BackwardInput, input));
        if let Some(late) = input.checked_sub(rank) {
            actions.push(action(ActionKind::BackwardWeight, late));
        }
        if forward < m {
            actions.push(action(ActionKind::Forward, forward));
            forward += 1;
        }
    }
    let rest = m.saturating_sub(rank)..m;
    actions.extend(rest.map(|m| action(ActionKind::BackwardWeight, m)));
    actions
}
