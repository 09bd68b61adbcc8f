//! [`ExitReport`]: how a launch ended.

/// How a launch ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExitReport {
    /// 0, or the code of the rank that failed first; 128 plus the signal that ended it or the
    /// launcher.
    pub code: u8,
    /// The rank that failed first.
    pub failed_rank: Option<usize>,
}
