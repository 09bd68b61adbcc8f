//! [`CommunicatorOptions`] and [`Algorithm`].

use std::time::Duration;

/// How a reduction or gather is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Algorithm {
    /// Direct exchange: an all-to-all of chunks, a local sum in rank order, an all-gather.
    /// Each rank sends `2S(n-1)/n` bytes in two steps. Canonical order: the default.
    #[default]
    Direct,
    /// Ring: `2(n-1)` steps to the next neighbour, `2S(n-1)/n` bytes per rank. Chunk `c` is added
    /// in the rotated order `c+1, c+2, ..., c`: deterministic, but not rank order.
    Ring,
    /// Host first: ranks of one host add in rank order, then the hosts' sums are added in the order of
    /// their first ranks: `(a + b) + (c + d)` for two hosts of two. Deterministic, but not rank order.
    /// Each host sends `2S(n-l)/n` bytes to others, `l` being its ranks: `l` times less than `Direct`.
    /// For slow links between hosts. Where all ranks share a host, or none does, this is `Direct`.
    HostFirst,
    /// Parameter server: everyone sends all to index 0, which reduces in rank order and answers.
    /// The server moves `2S(n-1)` bytes, every other rank `2S`. The baseline that a ring removes.
    Centralized,
}

/// What a communicator is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommunicatorOptions {
    /// Algorithm of all_reduce, reduce_scatter and all_gather.
    pub algorithm: Algorithm,
    /// Longest wait for peers within one call.
    pub timeout: Duration,
    /// Longest wait for peers while the communicator is made.
    pub startup_timeout: Duration,
    /// Processes that share a host exchange through shared memory; `false`: through TCP even then.
    pub shared_memory: bool,
    /// This rank's host, where the system cannot tell: ranks of different numbers do not share memory.
    pub host: Option<u32>,
    /// `Direct` sums are pipelined: blocks are added while others travel. `false`: whole arrays, one
    /// step after the other, to the same bits; the plain twin for tests and benchmarks.
    pub pipelined: bool,
    /// Ranks compare what they call before data moves. `false` saves that exchange; a program that is
    /// not the same on all ranks then ends in wrong data or in a timeout. For measurements.
    pub check_calls: bool,
}

impl Default for CommunicatorOptions {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::Direct,
            timeout: Duration::from_secs(300),
            startup_timeout: Duration::from_secs(60),
            shared_memory: true,
            host: None,
            pipelined: true,
            check_calls: true,
        }
    }
}
