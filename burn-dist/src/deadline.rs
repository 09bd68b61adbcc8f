//! [`deadline`]: when a timeout is over.

use std::time::{Duration, Instant};

/// Longer timeouts are no timeouts, and an `Instant` may not reach so far.
const LONGEST: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// The end of a timeout that begins now; of one without end, some decades away.
pub(crate) fn deadline(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_without_end_has_a_deadline() {
        let now = Instant::now();
        assert!(deadline(Duration::MAX) > now + LONGEST / 2);
        let soon = deadline(Duration::from_secs(1));
        assert!(soon >= now + Duration::from_secs(1) && soon < now + Duration::from_secs(100));
    }
}
