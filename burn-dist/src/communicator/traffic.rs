//! [`Traffic`]: what a rank has sent and received in a group.

use std::ops::Sub;

/// Bytes that one rank moved in one group since the group was made.
///
/// Payload only, as nccl-tests counts it; call headers and frame heads are in `overhead`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Payload bytes sent to each member, by index.
    pub sent: Vec<u64>,
    /// Payload bytes received from each member, by index.
    pub received: Vec<u64>,
    /// Bytes of headers and frames sent.
    pub overhead: u64,
    /// Number of calls that ended well.
    pub calls: u64,
}

impl Traffic {
    /// Nothing moved yet in a group of `size` members.
    pub fn new(size: usize) -> Self {
        Self {
            sent: vec![0; size],
            received: vec![0; size],
            ..Self::default()
        }
    }

    /// Takes over the numbers of a group of the same size, without allocating.
    pub(super) fn copy_from(&mut self, other: &Self) {
        self.sent.copy_from_slice(&other.sent);
        self.received.copy_from_slice(&other.received);
        (self.overhead, self.calls) = (other.overhead, other.calls);
    }

    /// Adds what was moved some other way in a group of the same size.
    pub fn add(&mut self, other: &Self) {
        let add = |sums: &mut [u64], values: &[u64]| {
            sums.iter_mut().zip(values).for_each(|(a, b)| *a += b);
        };
        add(&mut self.sent, &other.sent);
        add(&mut self.received, &other.received);
        self.overhead += other.overhead;
        self.calls += other.calls;
    }

    /// Payload bytes sent to all members.
    pub fn total_sent(&self) -> u64 {
        self.sent.iter().sum()
    }

    /// Payload bytes received from all members.
    pub fn total_received(&self) -> u64 {
        self.received.iter().sum()
    }
}

impl Sub<&Traffic> for &Traffic {
    type Output = Traffic;

    /// What was moved between an `earlier` reading and this one.
    fn sub(self, earlier: &Traffic) -> Traffic {
        let minus = |a: &[u64], b: &[u64]| a.iter().zip(b).map(|(a, b)| a - b).collect();
        Traffic {
            sent: minus(&self.sent, &earlier.sent),
            received: minus(&self.received, &earlier.received),
            overhead: self.overhead - earlier.overhead,
            calls: self.calls - earlier.calls,
        }
    }
}
