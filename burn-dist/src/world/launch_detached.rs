//! [`launch_detached`]: ranks as threads that can be left behind.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

use super::launch_threads::{RankThreads, named};
use super::{World, WorldOptions};
use crate::error::{DistError, Result};

/// As [`launch_threads`](super::launch_threads), but once a rank has failed, others have
/// `options.step_timeout` to end. Those that do not, since they hang outside of a collective, where nobody can
/// stop a thread, are named and left behind.
pub(crate) fn launch_detached<T: Send + 'static>(
    ranks: usize,
    options: WorldOptions,
    f: impl Fn(World) -> Result<T> + Send + Sync + 'static,
) -> Result<Vec<T>> {
    let all = Arc::new(RankThreads::new(ranks, options)?);
    let _signal = all.listen()?;
    let (f, (end, ends)) = (Arc::new(f), channel());
    let mut running = vec![true; ranks];
    let mut failed_at = None;
    for rank in 0..ranks {
        let (of_all, f, end) = (all.clone(), f.clone(), end.clone());
        let body = move || {
            let value = of_all.run(rank, &*f);
            drop(f);
            // Nobody waits for one that was left behind.
            let _ = end.send((rank, value));
        };
        if let Err(error) = named(rank).spawn(body) {
            all.not_started(rank, &error);
            running[rank] = false;
            failed_at = Some(Instant::now());
        }
    }
    drop((f, end));
    let mut results: Vec<Option<T>> = (0..ranks).map(|_| None).collect();
    while running.contains(&true) {
        let end = match failed_at {
            None => ends.recv().ok(),
            Some(at) => {
                let since = Instant::elapsed(&at);
                let left = options.step_timeout.saturating_sub(since);
                ends.recv_timeout(left).ok()
            }
        };
        let Some((rank, value)) = end else { break };
        running[rank] = false;
        if value.is_none() {
            failed_at.get_or_insert_with(Instant::now);
        }
        results[rank] = value;
    }
    let left: Vec<usize> = (0..ranks).filter(|&rank| running[rank]).collect();
    let ended = all.end(results.into_iter().flatten().collect());
    match ended {
        Err(DistError::Rank { rank, problem }) if !left.is_empty() => Err(DistError::Rank {
            rank,
            problem: format!(
                "{problem}; since then rank(s) {left:?} did not end for {:?}: they hang outside of a collective, and are left behind until the program ends",
                options.step_timeout
            ),
        }),
        ended => ended,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use super::*;

    fn options(seconds: u64) -> WorldOptions {
        WorldOptions {
            step_timeout: Duration::from_secs(seconds),
            ..WorldOptions::default()
        }
    }

    #[test]
    fn results_are_in_rank_order_and_failures_the_first() {
        let ranks = launch_detached(3, options(20), |world| {
            world.whole()?.barrier()?;
            Ok(world.rank())
        });
        assert_eq!(ranks.expect("no fault"), [0, 1, 2]);
        let error = launch_detached(3, options(20), |world| {
            let group = world.whole()?;
            group.barrier()?;
            assert!(world.rank() != 1, "out of luck");
            group.barrier()
        });
        let error = error.expect_err("rank 1 panics").to_string();
        assert!(
            error.starts_with("rank 1 failed: it panicked: out of luck"),
            "{error}"
        );
        assert!(!error.contains("left behind"), "{error}");
    }

    #[test]
    fn a_rank_that_hangs_is_named_and_left_behind() {
        // Hangs until the test is over.
        let (release, hold): (Sender<()>, Receiver<()>) = channel();
        let hold = Mutex::new(hold);
        let start = Instant::now();
        let error = launch_detached(3, options(1), move |world| {
            let group = world.whole()?;
            if world.rank() == 2 {
                let hold = hold.lock().expect("one waits");
                let _ = hold.recv();
            }
            group.barrier()
        });
        let error = error.expect_err("rank 2 hangs").to_string();
        assert!(error.contains("rank(s) [2] did not end for 1s"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(20));
        drop(release);
    }

    #[test]
    fn a_slow_rank_is_waited_for() {
        let error = launch_detached(2, options(20), |world| {
            let group = world.whole()?;
            if world.rank() == 0 {
                return Err(DistError::config("a bad number", "take another"));
            }
            std::thread::sleep(Duration::from_millis(300));
            group.barrier()
        });
        let error = error.expect_err("rank 0 fails").to_string();
        assert!(error.starts_with("rank 0 failed: a bad number"), "{error}");
        assert!(!error.contains("left behind"), "{error}");
    }
}
