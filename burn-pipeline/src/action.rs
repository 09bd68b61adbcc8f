//! [`Action`]: one thing that a rank does in a step.

use std::fmt;
use std::str::FromStr;

use burn_dist::DistError;

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ActionKind {
    /// `F`: a stage's forward pass.
    Forward,
    /// `B`: its backward pass, of input and weights.
    Backward,
    /// `I`: the backward pass of its input alone.
    BackwardInput,
    /// `W`: the backward pass of its weights, after `I`.
    BackwardWeight,
    /// `SEND_F`: its output leaves for the next stage.
    SendForward,
    /// `RECV_F`: its input is awaited from the stage before.
    RecvForward,
    /// `SEND_B`: its input's gradient leaves for the stage before.
    SendBackward,
    /// `RECV_B`: its output's gradient is awaited from the next stage.
    RecvBackward,
    /// `REDUCE_GRAD`: its gradients, of all micro-batches, go to whoever reduces and uses them.
    ReduceGrad,
}

impl ActionKind {
    const ALL: [(Self, &'static str); 9] = [
        (Self::Forward, "F"),
        (Self::Backward, "B"),
        (Self::BackwardInput, "I"),
        (Self::BackwardWeight, "W"),
        (Self::SendForward, "SEND_F"),
        (Self::RecvForward, "RECV_F"),
        (Self::SendBackward, "SEND_B"),
        (Self::RecvBackward, "RECV_B"),
        (Self::ReduceGrad, "REDUCE_GRAD"),
    ];

    fn text(self) -> &'static str {
        let entry = Self::ALL.iter().find(|(kind, _)| *kind == self);
        entry.expect("invariant: all kinds are listed").1
    }

    /// Whether it computes: the others are added by [`lower`](crate::lower).
    pub fn is_compute(self) -> bool {
        matches!(
            self,
            Self::Forward | Self::Backward | Self::BackwardInput | Self::BackwardWeight
        )
    }

    /// Whether it gives the gradient of a stage's input.
    pub fn gives_input_gradient(self) -> bool {
        matches!(self, Self::Backward | Self::BackwardInput)
    }

    /// Whether it gives gradients of a stage's weights, the last thing that a micro-batch needs there.
    pub fn gives_weight_gradient(self) -> bool {
        matches!(self, Self::Backward | Self::BackwardWeight)
    }
}

/// A stage, what it does, and for which micro-batch. Prints and parses as `2F0`: stage 2, forward,
/// micro-batch 0. [`ActionKind::ReduceGrad`] has no micro-batch: `2REDUCE_GRAD`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Action {
    /// Which stage, from 0.
    pub stage: usize,
    /// What it does.
    pub kind: ActionKind,
    /// Which micro-batch, from 0; 0 for [`ActionKind::ReduceGrad`].
    pub micro_batch: usize,
}

impl Action {
    /// An action.
    pub fn new(stage: usize, kind: ActionKind, micro_batch: usize) -> Self {
        Self {
            stage,
            kind,
            micro_batch,
        }
    }

    /// What this stage's forward or backward pass needs of another stage: the pass before it.
    pub(crate) fn input_of(self, num_stages: usize) -> Option<(usize, bool)> {
        match self.kind {
            ActionKind::Forward if self.stage > 0 => Some((self.stage - 1, true)),
            kind if kind.gives_input_gradient() && self.stage + 1 < num_stages => {
                Some((self.stage + 1, false))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.kind {
            ActionKind::ReduceGrad => format!("{}{}", self.stage, self.kind.text()),
            kind => format!("{}{}{}", self.stage, kind.text(), self.micro_batch),
        };
        f.pad(&text)
    }
}

impl FromStr for Action {
    type Err = DistError;

    fn from_str(text: &str) -> Result<Self, DistError> {
        let malformed = || {
            DistError::config(
                format!("{text:?} is no action of a schedule"),
                "write a stage, F, B, I or W, and a micro-batch, as in 2F0",
            )
        };
        let is_digit = |c: char| c.is_ascii_digit();
        let rest = text.trim_start_matches(is_digit);
        let stage = text[..text.len() - rest.len()]
            .parse()
            .map_err(|_| malformed())?;
        let name = rest.trim_end_matches(is_digit);
        let entry = ActionKind::ALL.iter().find(|(_, known)| *known == name);
        let kind = entry.ok_or_else(malformed)?.0;
        let number = &rest[name.len()..];
        let micro_batch = match kind {
            ActionKind::ReduceGrad if number.is_empty() => 0,
            ActionKind::ReduceGrad => return Err(malformed()),
            _ => number.parse().map_err(|_| malformed())?,
        };
        Ok(Self::new(stage, kind, micro_batch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        for (kind, _) in ActionKind::ALL {
            let micro_batch = if kind == ActionKind::ReduceGrad {
                0
            } else {
                13
            };
            let action = Action::new(20, kind, micro_batch);
            assert_eq!(action.to_string().parse(), Ok(action));
        }
        assert_eq!("2F0".parse(), Ok(Action::new(2, ActionKind::Forward, 0)));
        let sends = Action::new(1, ActionKind::SendForward, 3);
        assert_eq!("1SEND_F3".parse(), Ok(sends));
        for text in [
            "",
            "F0",
            "2F",
            "2X0",
            "2f0",
            "-1F0",
            "2F-1",
            "2F0 ",
            "1REDUCE_GRAD1",
        ] {
            assert!(text.parse::<Action>().is_err(), "{text}");
        }
    }
}
