//! [`DistError`]: what can go wrong between ranks, said so that the reader knows the next step.

use std::time::Duration;

/// Result of everything that can fail because of configuration, peers, files or input.
pub type Result<T, E = DistError> = std::result::Result<T, E>;

/// A failure of configuration, of a peer, of a file or of input.
///
/// Errors are values and can be cloned: a group that failed once answers every later call with
/// [`DistError::Poisoned`], which carries the first cause.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DistError {
    /// Options that cannot work, alone or together.
    #[error("{problem}; {hint}")]
    Config {
        /// What is wrong, with the numbers.
        problem: String,
        /// What to do about it.
        hint: String,
    },
    /// The start environment is incomplete or contradicts itself; all findings at once.
    #[error("the start environment cannot be used: {}; start the program with `burnrun`, torchrun, srun or mpirun, or plainly for one rank", problems.join("; "))]
    Environment {
        /// One entry per missing or contradicting variable.
        problems: Vec<String>,
    },
    /// An address to listen on is already taken.
    #[error(
        "rank {rank} cannot listen on {address}: the port is taken; choose another --master-port, or 0 for a free one"
    )]
    AddressInUse {
        /// The rank that wanted to listen.
        rank: usize,
        /// The address as `host:port`.
        address: String,
    },
    /// Ranks could not find or accept each other while starting.
    #[error("rank {rank} could not join at {address}: {problem}; {hint}")]
    Rendezvous {
        /// The rank that tried.
        rank: usize,
        /// The address that it tried.
        address: String,
        /// What happened.
        problem: String,
        /// What to do about it.
        hint: String,
    },
    /// Two ranks called different things at the same place of the program.
    #[error(
        "rank {rank}, group {group}, call {sequence}: rank {differing} disagrees: expected {expected}, got {got}; every rank of a group must make the same calls in the same order"
    )]
    Mismatch {
        /// The rank that reports.
        rank: usize,
        /// The group's name.
        group: String,
        /// Position of the call in the group's order, from 0.
        sequence: u64,
        /// The first rank whose call differs from this rank's.
        differing: usize,
        /// This rank's call.
        expected: String,
        /// The other rank's call.
        got: String,
    },
    /// Peers did not come within the group's timeout.
    #[error(
        "rank {rank}, group {group}, call {sequence} ({operation}): no answer from rank(s) {waiting_for:?} within {waited:?}; look at what these ranks do, or raise the step timeout"
    )]
    Timeout {
        /// The rank that reports.
        rank: usize,
        /// The group's name.
        group: String,
        /// Position of the call in the group's order, from 0.
        sequence: u64,
        /// The operation that waited.
        operation: String,
        /// The ranks that did not answer.
        waiting_for: Vec<usize>,
        /// How long this rank waited.
        waited: Duration,
    },
    /// Peers closed their connection: they ended, crashed or were killed.
    #[error(
        "rank {rank}, group {group}, call {sequence} ({operation}): lost rank(s) {lost:?}: {detail}; read the output of these ranks first"
    )]
    PeerLost {
        /// The rank that reports.
        rank: usize,
        /// The group's name.
        group: String,
        /// Position of the call in the group's order, from 0.
        sequence: u64,
        /// The operation that was running.
        operation: String,
        /// The ranks that are gone.
        lost: Vec<usize>,
        /// How they went, as far as it is known.
        detail: String,
    },
    /// A peer met an error and told the group.
    #[error(
        "rank {rank}, group {group}, call {sequence} ({operation}): rank {peer} failed: {cause}"
    )]
    PeerFailed {
        /// The rank that reports.
        rank: usize,
        /// The group's name.
        group: String,
        /// Position of the call in the group's order, from 0.
        sequence: u64,
        /// The operation that was running here.
        operation: String,
        /// The rank that failed first.
        peer: usize,
        /// The peer's own words.
        cause: String,
    },
    /// A device or its communication library failed in a call.
    #[error(
        "rank {rank}, group {group}, call {sequence} ({operation}): the device failed: {problem}; NCCL_DEBUG=INFO and the output of the other ranks say more"
    )]
    Device {
        /// The rank that reports.
        rank: usize,
        /// The group's name.
        group: String,
        /// Position of the call among the group's calls on the device, from 0.
        sequence: u64,
        /// The operation that was running.
        operation: String,
        /// What the device or the library said.
        problem: String,
    },
    /// The group failed before and refuses every later call.
    #[error(
        "rank {rank}, group {group}: refused {operation}, the group failed earlier: {cause}; make a new group or end the program"
    )]
    Poisoned {
        /// The rank that reports.
        rank: usize,
        /// The group's name.
        group: String,
        /// The refused operation.
        operation: String,
        /// The first failure.
        cause: Box<DistError>,
    },
    /// A call that this rank can see to be wrong on its own, before anything is sent.
    #[error("rank {rank}, group {group}: {operation} refused: {problem}; {hint}")]
    InvalidCall {
        /// The rank that reports.
        rank: usize,
        /// The group's name.
        group: String,
        /// The refused operation.
        operation: String,
        /// What is wrong, expected and got.
        problem: String,
        /// What to do about it.
        hint: String,
    },
    /// Replicas that should hold the same parameters do not.
    #[error(
        "rank {rank}, group {group}: parameters differ on rank {differing}: expected {expected}, got {got}; {hint}"
    )]
    Replica {
        /// The rank that reports.
        rank: usize,
        /// The group's name.
        group: String,
        /// The first rank that differs.
        differing: usize,
        /// This rank's parameter.
        expected: String,
        /// The other rank's parameter.
        got: String,
        /// What to do about it.
        hint: String,
    },
    /// A file or folder could not be read or written.
    #[error("{path}: {problem}")]
    File {
        /// The path as the user gave it.
        path: String,
        /// What happened.
        problem: String,
    },
    /// A rank of a launch failed or panicked.
    #[error("rank {rank} failed: {problem}")]
    Rank {
        /// The rank that failed first.
        rank: usize,
        /// Its error or panic message.
        problem: String,
    },
    /// A pipeline's action failed.
    #[error("rank {rank}, stage {stage}, micro-batch {micro_batch}, action {action}: {cause}")]
    Action {
        /// The rank that reports.
        rank: usize,
        /// The stage.
        stage: usize,
        /// The micro-batch.
        micro_batch: usize,
        /// The action, as in a schedule's text.
        action: String,
        /// What happened.
        cause: Box<DistError>,
    },
}

impl DistError {
    /// Shorthand for [`DistError::Config`].
    pub fn config(problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Config {
            problem: problem.into(),
            hint: hint.into(),
        }
    }

    /// The first cause: unwraps [`DistError::Poisoned`] to the failure that poisoned the group, and
    /// [`DistError::Action`] to what happened in it.
    pub fn root_cause(&self) -> &DistError {
        match self {
            Self::Poisoned { cause, .. } | Self::Action { cause, .. } => cause.root_cause(),
            other => other,
        }
    }

    /// Whether this rank only met what began on another one.
    pub fn comes_from_a_peer(&self) -> bool {
        matches!(
            self.root_cause(),
            Self::PeerLost { .. } | Self::PeerFailed { .. }
        )
    }

    /// Whether a printed error is one that [`comes_from_a_peer`](Self::comes_from_a_peer): for the
    /// launcher, which sees what ranks print.
    pub(crate) fn line_comes_from_a_peer(line: &str) -> bool {
        let Some((_, after_call)) = line.split_once("): ") else {
            return false;
        };
        line.contains(", group ")
            && (after_call.starts_with("lost rank(s) ")
                || (after_call.starts_with("rank ") && after_call.contains(" failed: ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_began_elsewhere_is_known_by_its_text() {
        let lost = DistError::PeerLost {
            rank: 0,
            group: "world".into(),
            sequence: 3,
            operation: "all_reduce(sum)".into(),
            lost: vec![1],
            detail: "the connection was closed".into(),
        };
        let failed = DistError::PeerFailed {
            rank: 0,
            group: "world".into(),
            sequence: 3,
            operation: "barrier".into(),
            peer: 2,
            cause: "it panicked".into(),
        };
        let poisoned = DistError::Poisoned {
            rank: 0,
            group: "world".into(),
            operation: "barrier".into(),
            cause: Box::new(lost.clone()),
        };
        let own = DistError::config("a bad number", "take another");
        for (error, from_a_peer) in [(lost, true), (failed, true), (poisoned, true), (own, false)] {
            assert_eq!(error.comes_from_a_peer(), from_a_peer, "{error}");
            let line = format!("error: {error}");
            assert_eq!(
                DistError::line_comes_from_a_peer(&line),
                from_a_peer,
                "{error}"
            );
        }
    }
}
