//! 1F1B: after a warm-up of `p-r-1` forward passes, one forward and one backward pass in turn. (PipeDream,
//! arXiv 1806.03377; with a flush, arXiv 2104.04473, section 2.2.)

use super::PipelineShape;
use crate::{Action, ActionKind};

pub(super) fn actions(shape: PipelineShape, rank: usize) -> Vec<Action> {
    let m = shape.micro_batches;
    let warm_up = warm_up(shape, rank);
    let forward = |m| Action::new(rank, ActionKind::Forward, m);
    let backward = |m| Action::new(rank, ActionKind::Backward, m);
    let mut actions: Vec<Action> = (0..warm_up).map(forward).collect();
    for steady in warm_up..m {
        actions.push(forward(steady));
        actions.push(backward(steady - warm_up));
    }
    actions.extend((m - warm_up..m).map(backward));
    actions
}

/// Forward passes before the first pair.
pub(super) fn warm_up(shape: PipelineShape, rank: usize) -> usize {
    (shape.ranks - rank - 1).min(shape.micro_batches)
}
