//! [`Announced`]: a job whose members say ahead of it what they are about to do.
//!
//! A member's words and its bytes travel one after the other without a pause. Nobody looks at the bytes
//! of a member before its words are known to fit, and the job ends only when all have spoken.

use smallvec::SmallVec;

use super::exchange::{Receive, Send};
use super::job::{Job, Lanes, Wants};
use super::{Announcement, Fault, MESSAGE_HEAD};

pub(super) struct Announced<'a, J> {
    frame: &'a [u8],
    sends: SmallVec<[Send<'a>; 8]>,
    receives: SmallVec<[Receive<'a>; 8]>,
    fits: &'a dyn Fn(usize, &[u8]) -> bool,
    begun: bool,
    job: J,
}

impl<'a, J: Job> Announced<'a, J> {
    pub(super) fn new(announcement: Announcement<'a>, index: usize, job: J) -> Self {
        let Announcement { frame, heard, fits } = announcement;
        let others = (0..=heard.len()).filter(|&other| other != index);
        Self {
            frame,
            sends: others.clone().map(|to| Send::frame(to, frame)).collect(),
            receives: others
                .zip(heard)
                .map(|(from, heard)| Receive::message(from, heard))
                .collect(),
            fits,
            begun: false,
            job,
        }
    }
}

impl<J: Job> Job for Announced<'_, J> {
    fn advance(&mut self, lanes: &mut Lanes) -> Result<bool, Fault> {
        let Self {
            sends, receives, ..
        } = self;
        if !std::mem::replace(&mut self.begun, true) {
            for send in sends.iter() {
                lanes.of(send.to).begin_write();
                lanes.hold(send.to, true);
            }
        }
        let mut moved = false;
        for send in sends.iter_mut().filter(|send| !send.is_done()) {
            moved |= send.advance(lanes.of(send.to));
        }
        let spoken = sends.iter().all(|send| send.is_done());
        for receive in receives.iter_mut() {
            let from = receive.from;
            if !lanes.is_held(from) {
                continue;
            }
            // Words of a call are mostly the same on all members.
            let header = &self.frame[MESSAGE_HEAD..];
            if (self.fits)(from, header) && receive.take_at_once(lanes.of(from), self.frame) {
                lanes.hold(from, false);
                moved = true;
                continue;
            }
            if !receive.is_done() {
                moved |= receive.advance(lanes.of(from))?;
            }
            if receive.is_done() {
                if (self.fits)(from, receive.body()) {
                    lanes.hold(from, false);
                } else if spoken {
                    return Err(Fault::Disagrees { index: from });
                }
                // Else this member's own words go out first, so that the others can say what differs.
            }
        }
        if spoken {
            moved |= self.job.advance(lanes)?;
        }
        Ok(moved)
    }

    fn is_done(&self, lanes: &Lanes) -> bool {
        let mut receives = self.receives.iter();
        receives.all(|receive| !lanes.is_held(receive.from)) && self.job.is_done(lanes)
    }

    fn wants(&self, lanes: &Lanes, peer: usize) -> Wants {
        let wants = self.job.wants(lanes, peer);
        let mut sends = self.sends.iter();
        Wants {
            read: wants.read || lanes.is_held(peer),
            write: wants.write || sends.any(|send| send.to == peer && !send.is_done()),
        }
    }

    /// Members that have not spoken hold up those that have.
    fn blames(&self, lanes: &Lanes, peer: usize) -> bool {
        let mut receives = self.receives.iter();
        match receives.any(|receive| lanes.is_held(receive.from)) {
            true => lanes.is_held(peer),
            false => self.job.blames(lanes, peer),
        }
    }
}
