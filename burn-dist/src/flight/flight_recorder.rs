//! [`FlightRecorder`]: the ring of a rank's last calls.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Instant, SystemTime};

use super::{
    FlightCall, FlightDetail, FlightEntry, FlightGroup, FlightLog, FlightReason, FlightState,
};
use crate::error::Result;

/// The last calls of a rank, over all its groups. Cheap to clone.
///
/// Noting a call takes three locks, no allocation and no system call. Written to a file when a call
/// fails, and when somebody asks.
#[derive(Debug, Clone)]
pub struct FlightRecorder(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    rank: usize,
    world_size: usize,
    folder: Option<PathBuf>,
    /// Both clocks at one moment.
    epoch: (Instant, SystemTime),
    ring: Mutex<Ring>,
    /// Held while the file is written: several threads may want to.
    writing: Mutex<()>,
}

#[derive(Debug)]
struct Ring {
    entries: Vec<Entry>,
    next: u64,
    groups: Vec<Group>,
    next_group: u64,
    reasons: Vec<FlightReason>,
}

#[derive(Debug)]
struct Group {
    id: u64,
    name: Arc<str>,
    ranks: Arc<[usize]>,
    generation: usize,
    left: bool,
    /// Kept beside the ring: a call that waits for long must not be overwritten by other groups'.
    running: Option<Entry>,
    /// The last one that ended.
    last: Option<Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    number: u64,
    group: u64,
    sequence: Option<u64>,
    call: FlightCall,
    state: FlightState,
    queued: Instant,
    began: Option<Instant>,
    ended: Option<Instant>,
}

/// A noted call.
#[derive(Debug, Clone, Copy)]
pub struct FlightTicket(Entry);

impl FlightRecorder {
    /// Calls that are kept.
    pub const CAPACITY: usize = 2048;

    /// Most groups that are kept when they are gone.
    const MAX_GROUPS: usize = 256;

    /// Most reasons that are kept.
    const MAX_REASONS: usize = 16;

    /// A recorder of `rank`; it writes to `rank-N.json` in `folder`, or nowhere.
    pub fn new(rank: usize, world_size: usize, folder: Option<PathBuf>) -> Self {
        Self(Arc::new(Inner {
            rank,
            world_size,
            folder,
            epoch: (Instant::now(), SystemTime::now()),
            ring: Mutex::new(Ring {
                entries: Vec::with_capacity(Self::CAPACITY),
                next: 0,
                groups: Vec::new(),
                next_group: 0,
                reasons: Vec::new(),
            }),
            writing: Mutex::new(()),
        }))
    }

    /// Where it writes to.
    pub fn folder(&self) -> Option<&Path> {
        self.0.folder.as_deref()
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.0
            .ring
            .lock()
            .expect("invariant: no panic under this lock")
    }

    /// Notes a new group; its id is for [`queued`](Self::queued).
    pub fn enter(&self, name: &str, ranks: &[usize]) -> u64 {
        let mut ring = self.lock();
        let same = |group: &&Group| *group.name == *name && *group.ranks == *ranks;
        let generation = ring.groups.iter().rev().find(same);
        let generation = generation.map_or(0, |group| group.generation + 1);
        if ring.groups.len() >= Self::MAX_GROUPS
            && let Some(oldest) = ring.groups.iter().position(|group| group.left)
        {
            ring.groups.remove(oldest);
        }
        let id = ring.next_group;
        ring.next_group += 1;
        ring.groups.push(Group {
            id,
            name: name.into(),
            ranks: ranks.into(),
            generation,
            left: false,
            running: None,
            last: None,
        });
        id
    }

    /// Notes that the group makes no more calls.
    pub fn leave(&self, group: u64) {
        if let Some(group) = self.lock().group(group) {
            group.left = true;
        }
    }

    /// Notes a call that was made at `now`.
    pub fn queued(&self, group: u64, call: FlightCall, now: Instant) -> FlightTicket {
        let mut ring = self.lock();
        let entry = Entry {
            number: ring.next,
            group,
            sequence: None,
            call,
            state: FlightState::Queued,
            queued: now,
            began: None,
            ended: None,
        };
        ring.next += 1;
        match ring.entries.len() < Self::CAPACITY {
            true => ring.entries.push(entry),
            false => {
                let place = entry.number as usize % Self::CAPACITY;
                ring.entries[place] = entry;
            }
        }
        FlightTicket(entry)
    }

    /// Notes that the call runs, as the `sequence`-th of its group or pair.
    pub fn began(&self, ticket: &mut FlightTicket, sequence: u64, now: Instant) {
        let entry = &mut ticket.0;
        (entry.sequence, entry.began) = (Some(sequence), Some(now));
        entry.state = FlightState::Running;
        let mut ring = self.lock();
        ring.put(entry);
        if let Some(group) = ring.group(entry.group) {
            group.running = Some(*entry);
        }
    }

    /// Notes that the call ended.
    pub fn ended(&self, ticket: &mut FlightTicket, well: bool) {
        let entry = &mut ticket.0;
        entry.ended = Some(Instant::now());
        entry.state = if well {
            FlightState::Done
        } else {
            FlightState::Failed
        };
        let mut ring = self.lock();
        ring.put(entry);
        if let Some(group) = ring.group(entry.group) {
            group.running = None;
            group.last = Some(*entry);
        }
    }

    /// The recording so far, with one more reason for it: an error, or that somebody asked. The first
    /// errors are kept, and the last one who asked.
    pub fn log(&self, reason: &str, asked: bool) -> FlightLog {
        let written_us = self.microseconds(Instant::now());
        let mut ring = self.lock();
        ring.reasons.retain(|known| !(asked && known.asked));
        if ring.reasons.len() < Self::MAX_REASONS {
            let text = reason.into();
            ring.reasons.push(FlightReason {
                at_us: written_us,
                text,
                asked,
            });
        }
        let oldest = ring.next.saturating_sub(Self::CAPACITY as u64);
        let beside = ring.groups.iter().flat_map(|g| [g.last, g.running]);
        let beside = beside.flatten().filter(|entry| entry.number < oldest);
        let mut entries: Vec<Entry> = ring.entries.iter().copied().chain(beside).collect();
        entries.sort_by_key(|entry| entry.number);
        FlightLog {
            version: FlightLog::VERSION,
            rank: self.0.rank,
            world_size: self.0.world_size,
            process: std::process::id(),
            written_us,
            reasons: ring.reasons.clone(),
            forgotten: ring.next - entries.len() as u64,
            groups: ring.groups.iter().map(Group::export).collect(),
            entries: entries.iter().map(|entry| self.export(entry)).collect(),
        }
    }

    /// Writes the recording so far; where to, if anywhere.
    ///
    /// # Errors
    /// [`DistError::File`](crate::DistError::File).
    pub fn write(&self, reason: &str, asked: bool) -> Result<Option<PathBuf>> {
        let _one = self
            .0
            .writing
            .lock()
            .expect("invariant: no panic under this lock");
        match &self.0.folder {
            Some(folder) => self.log(reason, asked).write(folder).map(Some),
            None => Ok(None),
        }
    }

    fn microseconds(&self, at: Instant) -> u64 {
        let (instant, system) = self.0.epoch;
        let epoch = system
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let at = epoch + at.saturating_duration_since(instant);
        at.as_micros() as u64
    }

    fn export(&self, entry: &Entry) -> FlightEntry {
        let partners = match entry.call.detail {
            FlightDetail::Partners(to, from) => to.into_iter().chain(from).collect(),
            _ => Vec::new(),
        };
        FlightEntry {
            number: entry.number,
            group: entry.group,
            sequence: entry.sequence,
            operation: entry.call.to_string(),
            partners,
            dtype: entry.call.dtype.into(),
            shape: entry.call.shape().to_vec(),
            site: format!("{}:{}", entry.call.site.file(), entry.call.site.line()),
            state: entry.state,
            queued_us: self.microseconds(entry.queued),
            began_us: entry.began.map(|at| self.microseconds(at)),
            ended_us: entry.ended.map(|at| self.microseconds(at)),
        }
    }
}

impl Ring {
    fn group(&mut self, id: u64) -> Option<&mut Group> {
        self.groups.iter_mut().rev().find(|group| group.id == id)
    }

    /// Writes an entry to its place, unless a later one is there.
    fn put(&mut self, entry: &Entry) {
        let place = entry.number as usize % FlightRecorder::CAPACITY;
        if self.entries[place].number == entry.number {
            self.entries[place] = *entry;
        }
    }
}

impl Group {
    fn export(&self) -> FlightGroup {
        FlightGroup {
            id: self.id,
            name: self.name.to_string(),
            ranks: self.ranks.to_vec(),
            generation: self.generation,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::Location;

    fn call(name: &'static str) -> FlightCall {
        FlightCall::new(
            name,
            FlightDetail::Reduction("sum"),
            "f32",
            &[2, 3],
            Location::caller(),
        )
    }

    #[test]
    fn the_last_calls_are_kept_and_one_that_waits_is_never_forgotten() {
        let recorder = FlightRecorder::new(1, 2, None);
        let (slow, busy) = (
            recorder.enter("slow", &[0, 1]),
            recorder.enter("busy", &[0, 1]),
        );
        let mut waiting = recorder.queued(slow, call("all_reduce"), Instant::now());
        recorder.began(&mut waiting, 7, Instant::now());
        let calls = 2 * FlightRecorder::CAPACITY as u64 + 3;
        for sequence in 0..calls {
            let mut ticket = recorder.queued(busy, call("all_gather"), Instant::now());
            recorder.began(&mut ticket, sequence, Instant::now());
            recorder.ended(&mut ticket, true);
        }
        let log = recorder.log("asked", true);
        assert_eq!(log.entries.len(), FlightRecorder::CAPACITY + 1);
        assert_eq!(log.forgotten, calls + 1 - log.entries.len() as u64);
        let first = &log.entries[0];
        assert_eq!((first.number, first.sequence), (0, Some(7)));
        assert_eq!(first.state, FlightState::Running);
        assert_eq!(first.operation, "all_reduce(sum)");
        assert_eq!(
            (first.shape.as_slice(), &*first.dtype),
            (&[2, 3][..], "f32")
        );
        assert!(first.site.contains("flight_recorder.rs:"), "{}", first.site);
        let last = log.entries.last().expect("not empty");
        assert_eq!(
            (last.sequence, last.state),
            (Some(calls - 1), FlightState::Done)
        );
        recorder.ended(&mut waiting, false);
        let again = recorder.log("it failed", false);
        assert_eq!(again.entries[0].state, FlightState::Failed);
        assert_eq!(again.reasons.len(), 2);
    }

    #[test]
    fn a_group_made_again_is_another_one_and_their_number_is_bounded() {
        let recorder = FlightRecorder::new(0, 2, None);
        for _ in 0..1000 {
            let id = recorder.enter("tp", &[0, 1]);
            recorder.leave(id);
        }
        let log = recorder.log("asked", true);
        assert_eq!(log.groups.len(), FlightRecorder::MAX_GROUPS);
        let last = log.groups.last().expect("not empty");
        assert_eq!((last.id, last.generation), (999, 999));
    }

    #[test]
    fn errors_are_kept_beside_any_number_of_questions() {
        let recorder = FlightRecorder::new(0, 2, None);
        for _ in 0..50 {
            recorder.log("asked", true);
        }
        recorder.log("it failed", false);
        let log = recorder.log("asked again", true);
        let texts: Vec<&str> = log.reasons.iter().map(|r| r.text.as_str()).collect();
        assert_eq!(texts, ["it failed", "asked again"]);
    }
}
