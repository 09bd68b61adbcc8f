//! [`ClockOffset`]: a rank's clock against the first one's.

use std::time::SystemTime;

use burn_dist::communicator::{HostBuffer, Operation};
use burn_dist::{ProcessGroup, Result};

/// How far this rank's clock is ahead of that of the group's first rank. Ranks on one host share a clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClockOffset {
    /// Microseconds; subtracted from this rank's times they give the first rank's.
    pub microseconds: f64,
    /// Half of the shortest round trip: the offset is at most so wrong.
    pub error: f64,
}

const ROUNDS: usize = 16;

impl ClockOffset {
    /// The first rank's.
    pub const NONE: Self = Self {
        microseconds: 0.0,
        error: 0.0,
    };

    /// Asks the first rank for the time, several times; the shortest round trip counts (Cristian's
    /// algorithm, Distributed Computing 3, 1989). Collective.
    ///
    /// # Errors
    /// What the group met.
    pub fn measure(group: &ProcessGroup) -> Result<Self> {
        let mut best: Option<Self> = None;
        for other in 1..group.size() {
            for _ in 0..ROUNDS {
                if group.index() == 0 {
                    receive(group, other)?;
                    send(group, other, now())?;
                } else if group.index() == other {
                    let asked = now();
                    send(group, 0, asked)?;
                    let there = receive(group, 0)?;
                    let found = Self::of(asked, there, now());
                    if best.is_none_or(|best| found.error < best.error) {
                        best = Some(found);
                    }
                }
            }
        }
        // What may be nothing is nothing: ranks on one host keep their common clock.
        let shared = |best: Self| match best.microseconds.abs() <= best.error {
            true => Self {
                microseconds: 0.0,
                ..best
            },
            false => best,
        };
        Ok(best.map_or(Self::NONE, shared))
    }

    /// Of one question: asked and answered by this clock, and the other's time in between.
    fn of(asked: f64, there: f64, answered: f64) -> Self {
        Self {
            microseconds: (asked + answered) / 2.0 - there,
            error: (answered - asked) / 2.0,
        }
    }
}

/// Microseconds since 1970.
fn now() -> f64 {
    super::rank_trace::microseconds(SystemTime::now())
}

fn send(group: &ProcessGroup, to: usize, time: f64) -> Result<()> {
    let operation = Operation::SendRecv {
        to: Some(to),
        from: None,
        receive: vec![0],
    };
    group.run(operation, HostBuffer::from_values(vec![time]))?;
    Ok(())
}

fn receive(group: &ProcessGroup, from: usize) -> Result<f64> {
    let operation = Operation::SendRecv {
        to: None,
        from: Some(from),
        receive: vec![1],
    };
    let nothing = HostBuffer::from_values(Vec::<f64>::new());
    Ok(group.run(operation, nothing)?.to_values::<f64>()[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_is_right_within_half_a_round_trip() {
        // This clock is 1000 ahead; the way there takes 3, the way back 7.
        let found = ClockOffset::of(5000.0, 4003.0, 5010.0);
        assert!((found.microseconds - 1000.0).abs() <= found.error);
        assert_eq!(found.error, 5.0);
        // As long there as back: exact.
        let found = ClockOffset::of(5000.0, 4005.0, 5010.0);
        assert_eq!(found.microseconds, 1000.0);
    }
}
