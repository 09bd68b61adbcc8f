//! Interleaved 1F1B: every rank holds `v` chunks, and micro-batches go through in rounds of `p`.
//! (arXiv 2104.04473, section 2.2.)

use super::PipelineShape;
use crate::{Action, ActionKind};

pub(super) fn actions(shape: PipelineShape, rank: usize) -> Vec<Action> {
    let PipelineShape {
        ranks: p,
        chunks: v,
        micro_batches: m,
    } = shape;
    let total = m * v;
    let place = |number: usize| {
        let chunk = number % (p * v) / p;
        (chunk, number / (p * v) * p + number % p)
    };
    let forward = |number| {
        let (chunk, micro_batch) = place(number);
        Action::new(chunk * p + rank, ActionKind::Forward, micro_batch)
    };
    let backward = |number| {
        let (chunk, micro_batch) = place(number);
        let chunk = v - 1 - chunk;
        Action::new(chunk * p + rank, ActionKind::Backward, micro_batch)
    };
    let warm_up = warm_up(shape, rank);
    let mut actions: Vec<Action> = (0..warm_up).map(forward).collect();
    for steady in warm_up..total {
        actions.push(forward(steady));
        actions.push(backward(steady - warm_up));
    }
    actions.extend((total - warm_up..total).map(backward));
    actions
}

/// Forward passes before the first backward one.
pub(super) fn warm_up(shape: PipelineShape, rank: usize) -> usize {
    let PipelineShape {
        ranks: p,
        chunks: v,
        micro_batches: m,
    } = shape;
    (2 * (p - rank - 1) + (v - 1) * p).min(m * v)
}
