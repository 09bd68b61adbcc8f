//! [`Diagnosis`]: what the recordings of all ranks say together. Pure.

use std::collections::BTreeMap;
use std::fmt;

use super::{FlightEntry, FlightGroup, FlightLog, FlightState};

/// Who is behind, where, and what the others wait for. Prints as a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnosis {
    /// Ranks of the world without a recording.
    pub missing: Vec<usize>,
    /// Ranks that others wait for and that wait for nobody: where to look first.
    pub culprits: Vec<usize>,
    /// Ranks that wait for each other in a circle, in its order; empty if there is none.
    pub circle: Vec<usize>,
    report: String,
}

/// A group as all its members know it.
type Key<'a> = (&'a str, &'a [usize], usize);

/// Where a rank stands in a group.
#[derive(Debug, Clone, Copy)]
struct Position<'a> {
    log: &'a FlightLog,
    /// What its entries call the group.
    id: u64,
    /// The call that it is in, or that failed.
    within: Option<&'a FlightEntry>,
    /// The last one that ended well.
    done: Option<&'a FlightEntry>,
}

/// A rank that cannot go on.
#[derive(Debug)]
struct Wait<'a> {
    rank: usize,
    key: Key<'a>,
    entry: &'a FlightEntry,
    others: Vec<usize>,
}

impl Diagnosis {
    /// Puts the recordings side by side.
    pub fn of(logs: &[FlightLog]) -> Self {
        let world = logs.iter().map(|log| log.world_size).max().unwrap_or(0);
        let missing: Vec<usize> = (0..world)
            .filter(|rank| logs.iter().all(|log| log.rank != *rank))
            .collect();
        let mut groups: BTreeMap<Key<'_>, BTreeMap<usize, Position<'_>>> = BTreeMap::new();
        for log in logs {
            for group in &log.groups {
                let key = (
                    group.name.as_str(),
                    group.ranks.as_slice(),
                    group.generation,
                );
                let position = position(log, group);
                groups.entry(key).or_default().insert(log.rank, position);
            }
        }
        let mut report = Report::new(logs, world, &missing);
        let mut waits = Vec::new();
        for (key, positions) in &groups {
            report.group(*key, positions, logs);
            waits.extend(waits_in(*key, positions));
        }
        let circle = circle(&waits);
        let mut culprits: Vec<usize> = waits
            .iter()
            .flat_map(|wait| wait.others.iter().copied())
            .filter(|rank| waits.iter().all(|wait| wait.rank != *rank))
            .collect();
        culprits.sort_unstable();
        culprits.dedup();
        report.verdict(logs, &waits, &culprits, &circle);
        Self {
            missing,
            culprits,
            circle,
            report: report.text,
        }
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.report)
    }
}

fn position<'a>(log: &'a FlightLog, group: &FlightGroup) -> Position<'a> {
    let of_group = || log.entries.iter().rev().filter(|e| e.group == group.id);
    let inside = |entry: &&FlightEntry| {
        matches!(entry.state, FlightState::Running | FlightState::Failed)
            && entry.began_us.is_some()
    };
    Position {
        log,
        id: group.id,
        within: of_group().find(inside),
        done: of_group().find(|entry| entry.state == FlightState::Done),
    }
}

/// The ranks that a call of `rank` still waits for.
fn waits_in<'a>(key: Key<'a>, positions: &BTreeMap<usize, Position<'a>>) -> Vec<Wait<'a>> {
    let ranks = key.1;
    let mut waits = Vec::new();
    for (&rank, position) in positions {
        let Some(entry) = position.within else {
            continue;
        };
        let concerned: Vec<usize> = match entry.partners.as_slice() {
            [] => ranks.to_vec(),
            partners => partners
                .iter()
                .map(|&i| ranks.get(i).copied().unwrap_or(i))
                .collect(),
        };
        let index = ranks.iter().position(|&member| member == rank);
        let has_come = |other: &usize| {
            positions.get(other).is_some_and(|position| {
                let mut theirs = position.log.entries.iter();
                theirs.any(|theirs| {
                    let same_kind = match entry.partners.is_empty() {
                        true => theirs.partners.is_empty(),
                        false => index.is_some_and(|index| theirs.partners.contains(&index)),
                    };
                    theirs.group == position.id && same_kind && theirs.sequence >= entry.sequence
                })
            })
        };
        let others: Vec<usize> = concerned
            .into_iter()
            .filter(|other| *other != rank && !has_come(other))
            .collect();
        if !others.is_empty() {
            waits.push(Wait {
                rank,
                key,
                entry,
                others,
            });
        }
    }
    waits
}

/// A circle of ranks that wait for each other, if there is one.
fn circle(waits: &[Wait<'_>]) -> Vec<usize> {
    let next = |rank: usize| {
        let of_rank = waits.iter().filter(move |wait| wait.rank == rank);
        of_rank.flat_map(|wait| wait.others.iter().copied())
    };
    for start in waits.iter().map(|wait| wait.rank) {
        // Paths from `start`, each rank once: the first that comes home is a shortest circle.
        let mut paths = std::collections::VecDeque::from([vec![start]]);
        let mut seen = std::collections::BTreeSet::from([start]);
        while let Some(path) = paths.pop_front() {
            for other in next(path[path.len() - 1]) {
                if other == start {
                    return path;
                }
                if seen.insert(other) {
                    let mut longer = path.clone();
                    longer.push(other);
                    paths.push_back(longer);
                }
            }
        }
    }
    Vec::new()
}

fn group_name(key: Key<'_>) -> String {
    let again = match key.2 {
        0 => String::new(),
        generation => format!(", made {} times", generation + 1),
    };
    format!("{} {:?}{again}", key.0.escape_debug(), key.1)
}

fn call(entry: &FlightEntry) -> String {
    let number = entry.sequence.map_or("not begun".into(), |s| s.to_string());
    format!(
        "call {number}, {} {} {:?}, from {}",
        entry.operation, entry.dtype, entry.shape, entry.site
    )
}

fn seconds(from: u64, to: u64) -> String {
    format!("{:.3} s", to.saturating_sub(from) as f64 / 1e6)
}

/// The text, as it grows.
struct Report {
    text: String,
}

impl Report {
    fn new(logs: &[FlightLog], world: usize, missing: &[usize]) -> Self {
        let mut this = Self {
            text: String::new(),
        };
        let ranks: Vec<usize> = logs.iter().map(|log| log.rank).collect();
        this.line(&format!("{world} ranks; recordings of {ranks:?}"));
        if !missing.is_empty() {
            this.line(&format!(
                "no recording of {missing:?}: killed, frozen, or written on another host"
            ));
        }
        for log in logs {
            let error = log.reasons.iter().find(|reason| !reason.asked);
            if let Some(first) = error.or(log.reasons.last()) {
                this.line(&format!("rank {}: {}", log.rank, first.text));
            }
        }
        this
    }

    fn line(&mut self, line: &str) {
        self.text += line;
        self.text.push('\n');
    }

    /// Where each member stands, and where their calls differ.
    fn group(
        &mut self,
        key: Key<'_>,
        positions: &BTreeMap<usize, Position<'_>>,
        logs: &[FlightLog],
    ) {
        if positions
            .values()
            .all(|p| p.within.is_none() && p.done.is_none())
        {
            return;
        }
        self.line(&format!("\ngroup {}", group_name(key)));
        for &rank in key.1 {
            let Some(position) = positions.get(&rank) else {
                let why = match logs.iter().any(|log| log.rank == rank) {
                    true => "has not made this group",
                    false => "no recording",
                };
                self.line(&format!("  rank {rank}: {why}"));
                continue;
            };
            let log = logs.iter().find(|log| log.rank == rank);
            let written = log.map_or(0, |log| log.written_us);
            if let Some(entry) = position.within {
                let until = entry.ended_us.unwrap_or(written);
                let since = seconds(entry.began_us.unwrap_or(until), until);
                let how = match entry.state {
                    FlightState::Failed => format!("failed after {since}"),
                    _ => format!("for {since} so far"),
                };
                self.line(&format!("  rank {rank}: in {}, {how}", call(entry)));
            } else if let Some(entry) = position.done {
                let since = seconds(entry.ended_us.unwrap_or(written), written);
                self.line(&format!(
                    "  rank {rank}: in no call since {since}; its last was {}",
                    call(entry)
                ));
            } else {
                self.line(&format!("  rank {rank}: has made no call"));
            }
        }
        self.differences(positions);
    }

    /// Collective calls of one number that are not the same.
    fn differences(&mut self, positions: &BTreeMap<usize, Position<'_>>) {
        let within = positions
            .iter()
            .filter_map(|(rank, position)| Some((rank, position.within?)))
            .filter(|(_, entry)| entry.partners.is_empty());
        let mut first: BTreeMap<u64, (&usize, &FlightEntry)> = BTreeMap::new();
        for (rank, entry) in within {
            let Some(sequence) = entry.sequence else {
                continue;
            };
            let (other, known) = *first.entry(sequence).or_insert((rank, entry));
            // Shapes of these differ by nature.
            let uneven = ["all_to_all", "scatter", "barrier"];
            let shapes = uneven.iter().any(|name| entry.operation.starts_with(name))
                || known.shape == entry.shape;
            if (&known.operation, &known.dtype) != (&entry.operation, &entry.dtype) || !shapes {
                self.line(&format!(
                    "  ranks {other} and {rank} differ: {} against {}",
                    call(known),
                    call(entry)
                ));
            }
        }
    }

    fn verdict(
        &mut self,
        logs: &[FlightLog],
        waits: &[Wait<'_>],
        culprits: &[usize],
        circle: &[usize],
    ) {
        self.line("");
        for wait in waits {
            self.line(&format!(
                "rank {} waits for {:?} in group {}, {}",
                wait.rank,
                wait.others,
                wait.key.0,
                call(wait.entry)
            ));
        }
        for &rank in culprits {
            let Some(log) = logs.iter().find(|log| log.rank == rank) else {
                self.line(&format!(
                    "=> rank {rank} is behind and left no recording: look at its output and its host"
                ));
                continue;
            };
            let last = log.entries.iter().rev().find(|e| e.began_us.is_some());
            let last = last.map_or("it has made no call".into(), |entry| {
                let ended = entry.ended_us.unwrap_or(log.written_us);
                let since = seconds(ended, log.written_us);
                format!("{since} after its last, {}", call(entry))
            });
            self.line(&format!(
                "=> rank {rank} is behind: in the program itself, {last}"
            ));
        }
        if !circle.is_empty() {
            self.line(&format!(
                "=> ranks {circle:?} wait for each other in a circle: make calls of different groups in one order on all ranks"
            ));
        }
        if waits.is_empty() {
            self.line(
                "nobody waits for a rank that has not come: calls that differ, a broken link or a slow one; see the errors above",
            );
        }
    }
}

#[cfg(test)]
mod tests;
