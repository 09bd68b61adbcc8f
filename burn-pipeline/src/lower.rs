//! [`lower`]: adds sends, receives and reductions to a plan.

use burn_dist::Result;

use crate::{Action, ActionKind, SchedulePlan, validate};

/// Adds to a plan of passes what moves between ranks: a send after each pass whose result another rank
/// needs, a receive there, and after a stage's last backward pass the reduction of its gradients.
///
/// Receives stand where the receiver is when the sender sends, in an imagined run in which every rank goes
/// as far as it can: so between any two ranks and in either direction, what is received comes in the order
/// in which it was sent, and no receive waits for what is sent later. A runtime may start a receive where it
/// stands and wait for it only at the pass that needs it; sends do not wait.
///
/// # Errors
/// As [`validate`](crate::validate()).
pub fn lower(plan: &SchedulePlan) -> Result<SchedulePlan> {
    validate::validate(plan)?;
    let stages = plan.num_stages();
    let rank_of: Vec<usize> = (0..stages)
        .map(|stage| plan.rank_of(stage).expect("invariant: it was validated"))
        .collect();
    let mut left = vec![plan.num_micro_batches(); stages];
    let mut ranks: Vec<Vec<Action>> = vec![Vec::new(); plan.ranks().len()];
    validate::run(plan, |rank, action| {
        let Action {
            stage, micro_batch, ..
        } = action;
        if !action.kind.is_compute() {
            return;
        }
        ranks[rank].push(action);
        let (next, send, receive) = match action.kind {
            ActionKind::Forward => {
                let next = Some(stage + 1).filter(|&next| next < stages);
                (next, ActionKind::SendForward, ActionKind::RecvForward)
            }
            kind if kind.gives_input_gradient() => (
                stage.checked_sub(1),
                ActionKind::SendBackward,
                ActionKind::RecvBackward,
            ),
            _ => (None, ActionKind::SendForward, ActionKind::RecvForward),
        };
        if let Some(next) = next.filter(|&next| rank_of[next] != rank) {
            ranks[rank].push(Action::new(stage, send, micro_batch));
            ranks[rank_of[next]].push(Action::new(next, receive, micro_batch));
        }
        if action.kind.gives_weight_gradient() {
            left[stage] -= 1;
            if left[stage] == 0 {
                ranks[rank].push(Action::new(stage, ActionKind::ReduceGrad, 0));
            }
        }
    })?;
    Ok(SchedulePlan::new(ranks))
}
