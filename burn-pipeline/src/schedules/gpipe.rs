//! GPipe: all forward passes, then all backward passes. (arXiv 1811.06965, section 2.3.)

use super::PipelineShape;
use crate::{Action, ActionKind};

pub(super) fn actions(shape: PipelineShape, rank: usize) -> Vec<Action> {
    let pass = |kind| (0..shape.micro_batches).map(move |m| Action::new(rank, kind, m));
    pass(ActionKind::Forward)
        .chain(pass(ActionKind::Backward))
        .collect()
}
