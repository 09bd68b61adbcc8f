//! How rank threads wait for each other: they spin for a moment, let others run for a moment, and then
//! sleep on a bell.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

use rustix::thread::futex;

use super::{Fault, InProcessTransport, Patience};

/// How often a member lets others run before it sleeps.
const YIELDS: u32 = 8;

/// Longest sleep before a look at the cancel flag.
const SLICE: Duration = Duration::from_millis(100);

/// How long words that do not fit stay for the others to see.
const GRACE: Duration = Duration::from_millis(500);

impl InProcessTransport {
    /// Waits until `ready`; `peer` is the member that makes it so.
    pub(super) fn wait(
        &self,
        peer: usize,
        patience: Patience<'_>,
        ready: impl Fn() -> bool,
    ) -> Result<(), Fault> {
        for _ in 0..self.spins {
            if ready() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        for _ in 0..YIELDS {
            if ready() {
                return Ok(());
            }
            std::thread::yield_now();
        }
        let bell = &self.room.bells[self.index];
        loop {
            let before = bell.count.load(Ordering::Acquire);
            bell.sleeping.store(true, Ordering::Relaxed);
            // Orders the note that this member sleeps before its last look.
            fence(Ordering::SeqCst);
            let outcome = self.sleep(peer, patience, before, &ready);
            bell.sleeping.store(false, Ordering::Relaxed);
            if outcome? {
                return Ok(());
            }
        }
    }

    fn sleep(
        &self,
        peer: usize,
        patience: Patience<'_>,
        before: u32,
        ready: &impl Fn() -> bool,
    ) -> Result<bool, Fault> {
        if ready() {
            return Ok(true);
        }
        if let Some(fault) = self.room.fault(peer) {
            // It may have laid something out just before it went.
            return if ready() { Ok(true) } else { Err(fault) };
        }
        if patience.cancelled.load(Ordering::Acquire) {
            return Err(Fault::Cancelled);
        }
        let rest = patience.deadline.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Err(Fault::Timeout {
                waiting_for: vec![peer],
            });
        }
        let rest = rest.min(SLICE);
        let rest = futex::Timespec {
            tv_sec: rest.as_secs() as i64,
            tv_nsec: rest.subsec_nanos().into(),
        };
        let bell = &self.room.bells[self.index].count;
        // A bell that rang before, an interruption and the end of time are all reasons to look.
        let _ = futex::wait(bell, futex::Flags::PRIVATE, before, Some(&rest));
        Ok(false)
    }

    /// After a timeout: all members that did not come; if all did, those that took nothing.
    pub(super) fn all_waited_for(
        &self,
        first: Fault,
        incoming: impl Iterator<Item = usize>,
        outgoing: impl Iterator<Item = usize>,
    ) -> Fault {
        let Fault::Timeout { .. } = first else {
            return first;
        };
        let mut waiting_for: Vec<usize> = incoming.filter(|&i| !self.has_come(i)).collect();
        if waiting_for.is_empty() {
            waiting_for.extend(outgoing.filter(|&i| !self.is_emptied(i)));
        }
        if waiting_for.is_empty() {
            // Just now they did.
            return first;
        }
        waiting_for.sort_unstable();
        waiting_for.dedup();
        Fault::Timeout { waiting_for }
    }

    /// Waits until everybody has laid out an array for this member.
    pub(super) fn await_all(&self, patience: Patience<'_>) -> Result<(), Fault> {
        for from in self.others() {
            self.wait(from, patience, || self.is_posted(from))
                .map_err(|fault| self.all_waited_for(fault, self.others(), std::iter::empty()))?;
        }
        Ok(())
    }

    /// Waits until the given members have emptied what was laid out for them.
    pub(super) fn await_emptied(
        &self,
        to: impl Iterator<Item = usize> + Clone,
        patience: Patience<'_>,
    ) -> Result<(), Fault> {
        for peer in to.clone() {
            self.wait(peer, patience, || self.is_emptied(peer))
                .map_err(|fault| self.all_waited_for(fault, std::iter::empty(), to.clone()))?;
        }
        Ok(())
    }

    /// After words that do not fit: lets the others see this member's, so that each can say what differs.
    pub(super) fn let_be_seen(
        &self,
        fault: Fault,
        to: impl Iterator<Item = usize> + Clone,
    ) -> Fault {
        if let Fault::Disagrees { .. } = fault {
            let never = AtomicBool::new(false);
            let patience = Patience {
                deadline: Instant::now() + GRACE,
                cancelled: &never,
            };
            // Those that do not come in that time are told why the group ends.
            let _ = self.await_emptied(to, patience);
        }
        fault
    }
}
