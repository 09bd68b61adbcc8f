//! [`Fault`]: what a transport can meet. Members are named by index.

/// Why an exchange did not end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::communicator) enum Fault {
    /// The deadline came first.
    Timeout { waiting_for: Vec<usize> },
    /// Connections broke without a word.
    Lost { indices: Vec<usize>, detail: String },
    /// A member said why it ends the group.
    PeerFailed { index: usize, cause: String },
    /// A member made its last call and left.
    Left { index: usize },
    /// A member sent what this protocol does not know.
    Garbled { index: usize, detail: String },
    /// What a member announced does not fit.
    Disagrees { index: usize },
    /// This rank itself gave the group up.
    Cancelled,
}
