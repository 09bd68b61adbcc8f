//! [`Call`] and [`Operation`]: one collective or point-to-point call as data.

use std::panic::Location;
use std::sync::Arc;

use super::{HostBuffer, ReduceOp};

/// What a call does. `n` is the number of members; shapes are per rank, split along the first dim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// In `[s...]`, out `[s...]`: the same reduced array on every rank.
    AllReduce(ReduceOp),
    /// In `[n*k, ...]`, out `[k, ...]`: rank `i` gets the `i`-th part of the reduced array.
    ReduceScatter(ReduceOp),
    /// In `[k, ...]`, out `[n*k, ...]`: all parts in rank order.
    AllGather,
    /// In `[sum(send_counts), ...]`, out `[sum(recv_counts), ...]`: rows for each rank, from each rank.
    AllToAll {
        /// Rows that go to each member, in rank order.
        send_counts: Vec<usize>,
        /// Rows that come from each member, in rank order.
        recv_counts: Vec<usize>,
    },
    /// In and out `[s...]`: everyone gets the root's array; other inputs give shape and dtype only.
    Broadcast {
        /// Index of the sender in the group.
        root: usize,
    },
    /// In `[k, ...]`, out `[n*k, ...]` on the root, `[0, ...]` elsewhere.
    Gather {
        /// Index of the receiver in the group.
        root: usize,
    },
    /// In `[n*k, ...]` on the root, `[0, ...]` elsewhere; out `[k, ...]`.
    Scatter {
        /// Index of the sender in the group.
        root: usize,
    },
    /// Sends the whole input to `to` and receives an array of shape `receive` from `from`, both at
    /// once, so that rings and neighbours cannot block each other. With `to` absent nothing is
    /// sent; with `from` absent the output is `[0]`.
    SendRecv {
        /// Index of the receiver of this rank's input.
        to: Option<usize>,
        /// Index of the sender of this rank's output.
        from: Option<usize>,
        /// Shape of the output; the sender must send just that.
        receive: Vec<usize>,
    },
    /// Returns when every rank has called it. In `[0]`, out `[0]`.
    Barrier,
}

impl Operation {
    /// The operation's name in the field, as it stands in errors and traces.
    pub fn name(&self) -> &'static str {
        match self {
            Self::AllReduce(_) => "all_reduce",
            Self::ReduceScatter(_) => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::AllToAll { .. } => "all_to_all",
            Self::Broadcast { .. } => "broadcast",
            Self::Gather { .. } => "gather",
            Self::Scatter { .. } => "scatter",
            Self::SendRecv {
                to: Some(_),
                from: None,
                ..
            } => "send",
            Self::SendRecv {
                to: None,
                from: Some(_),
                ..
            } => "recv",
            Self::SendRecv { .. } => "send_recv",
            Self::Barrier => "barrier",
        }
    }
}

impl Operation {
    /// Whether its header says what the call is for.
    pub(super) fn takes_label(&self) -> bool {
        !matches!(
            self,
            Self::AllToAll { .. } | Self::SendRecv { .. } | Self::Barrier
        )
    }

    /// Whether it fits the same operation on every other member, seen from member `own`: the rows of an
    /// all_to_all must mirror those of the others.
    pub(super) fn fits_itself(&self, own: usize) -> bool {
        match self {
            Self::AllToAll {
                send_counts,
                recv_counts,
            } => {
                let (sent, received) = (send_counts[own], recv_counts[own]);
                send_counts.iter().all(|&count| count == received)
                    && recv_counts.iter().all(|&count| count == sent)
            }
            _ => true,
        }
    }
}

/// One call: the operation and this rank's input.
#[derive(Debug, Clone)]
pub struct Call {
    /// What to do.
    pub operation: Operation,
    /// This rank's input; its memory may become the output.
    pub input: HostBuffer,
    /// Where in the program the call is made, for the flight recorder.
    pub site: &'static Location<'static>,
    /// What the call is for, if its caller says so: members compare it, and errors show it. It is cut
    /// at 160 bytes. Not for all_to_all, barrier, and calls of pairs.
    pub label: Option<Arc<str>>,
}

impl Call {
    /// A call from where this stands in the program.
    #[track_caller]
    pub fn new(operation: Operation, input: HostBuffer) -> Self {
        Self {
            operation,
            input,
            site: Location::caller(),
            label: None,
        }
    }

    /// The same call, with a label that all members must give.
    pub fn labelled(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// The same call, on behalf of another place.
    pub fn at(mut self, site: &'static Location<'static>) -> Self {
        self.site = site;
        self
    }
}
