//! [`Collective`]: what is measured, in the convention of nccl-tests, and what its result must be.

use burn_dist::communicator::{HostBuffer, Operation, ReduceOp};

#[derive(Debug, Clone, Copy)]
pub(crate) enum Collective {
    AllReduce,
    ReduceScatter,
    AllGather,
    AllToAll,
    Broadcast,
}

impl Collective {
    pub(crate) const ALL: [Self; 5] = [
        Self::AllReduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::AllToAll,
        Self::Broadcast,
    ];

    pub(crate) fn operation(self, n: usize, elements: usize) -> Operation {
        match self {
            Self::AllReduce => Operation::AllReduce(ReduceOp::Sum),
            Self::ReduceScatter => Operation::ReduceScatter(ReduceOp::Sum),
            Self::AllGather => Operation::AllGather,
            Self::AllToAll => Operation::AllToAll {
                send_counts: vec![elements / n; n],
                recv_counts: vec![elements / n; n],
            },
            Self::Broadcast => Operation::Broadcast { root: 0 },
        }
    }

    /// Elements that a rank brings, of an operation on `elements`.
    pub(crate) fn input_len(self, n: usize, elements: usize) -> usize {
        match self {
            Self::AllGather => elements / n,
            _ => elements,
        }
    }

    pub(crate) fn factor(self, n: usize) -> f64 {
        let share = (n - 1) as f64 / n as f64;
        match self {
            Self::AllReduce => 2.0 * share,
            Self::Broadcast => 1.0,
            _ => share,
        }
    }

    /// Whether every element of the result of inputs `rank + 1` is right.
    pub(crate) fn is_right(self, output: &HostBuffer, n: usize) -> bool {
        let values = output.to_values::<f32>();
        let sum = (n * (n + 1) / 2) as f32;
        let part = (values.len() / n).max(1);
        values.iter().enumerate().all(|(i, &value)| match self {
            Self::AllReduce | Self::ReduceScatter => value == sum,
            Self::AllGather | Self::AllToAll => value == ((i / part).min(n - 1) + 1) as f32,
            Self::Broadcast => value == 1.0,
        })
    }
}
