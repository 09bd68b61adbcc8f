//! [`Failed`]: a call that did not end well, and the error that it becomes.

use std::time::Duration;

use super::Members;
use super::transport::Fault;
use crate::error::DistError;

/// A call that did not end well.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) fault: FaultOrError,
    pub(super) sequence: u64,
    pub(super) operation: String,
}

/// What ended a call.
#[derive(Debug)]
pub(super) enum FaultOrError {
    Fault(Fault),
    Error(Box<DistError>),
}

impl From<Fault> for FaultOrError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// The error of this rank for what ended its call.
pub(super) fn explain(failed: Failed, members: &Members, waited: Duration) -> DistError {
    let Failed {
        fault,
        sequence,
        operation,
    } = failed;
    let fault = match fault {
        FaultOrError::Error(error) => return *error,
        FaultOrError::Fault(fault) => fault,
    };
    let ranks = members.ranks();
    let global = |indices: Vec<usize>| indices.into_iter().map(|i| ranks[i]).collect();
    let (rank, group) = (members.rank(), members.name().to_string());
    let lost = |indices: Vec<usize>, detail: String| DistError::PeerLost {
        rank,
        group: group.clone(),
        sequence,
        operation: operation.clone(),
        lost: global(indices),
        detail,
    };
    match fault {
        Fault::Timeout { waiting_for } => DistError::Timeout {
            rank,
            group,
            sequence,
            operation,
            waiting_for: global(waiting_for),
            waited,
        },
        Fault::Lost { indices, detail } => lost(indices, detail),
        Fault::Left { index } => lost(
            vec![index],
            "it made its last call and left; ranks with unequal numbers of inputs need join, \
             padding or dropping"
                .into(),
        ),
        Fault::Garbled { index, detail } => lost(
            vec![index],
            format!("it does not follow the protocol ({detail})"),
        ),
        Fault::Disagrees { index } => lost(vec![index], "it calls something else".into()),
        Fault::Cancelled => lost(vec![members.index()], "this rank gave the group up".into()),
        Fault::PeerFailed { index, cause } => DistError::PeerFailed {
            rank,
            group,
            sequence,
            operation,
            peer: ranks[index],
            cause,
        },
    }
}
