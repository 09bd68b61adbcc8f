//! [`RankTrace`]: what one rank did.

use std::collections::BTreeMap;
use std::time::SystemTime;

use burn_dist::flight::FlightLog;
use serde::{Deserialize, Serialize};

use crate::ActionSpan;

/// What one rank did in one step or more: actions and collective calls, by its own clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankTrace {
    /// The rank in the world.
    pub rank: usize,
    /// The actions of each step.
    pub steps: Vec<Vec<TraceSpan>>,
    /// Calls, in the order of their starts.
    pub calls: Vec<TraceSpan>,
    /// Whether the recorder had no room for all calls in the time of the steps.
    pub incomplete: bool,
}

/// Something that took time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceSpan {
    /// An action as it prints, or an operation.
    pub name: String,
    /// `stages`, or the call's group.
    pub track: String,
    /// Microseconds since 1970.
    pub start: f64,
    /// Microseconds since 1970.
    pub end: f64,
    /// What else is known.
    pub details: BTreeMap<String, String>,
}

impl RankTrace {
    /// Nothing yet.
    pub fn new(rank: usize) -> Self {
        Self {
            rank,
            steps: Vec::new(),
            calls: Vec::new(),
            incomplete: false,
        }
    }

    /// Adds a step's actions, those of [`PipelineStep::spans`](crate::PipelineStep::spans).
    pub fn add_step(&mut self, spans: &[ActionSpan]) {
        let spans = spans.iter().map(|span| TraceSpan {
            name: span.action.to_string(),
            track: "stages".into(),
            start: microseconds(span.start),
            end: microseconds(span.end),
            details: BTreeMap::from([
                ("stage".into(), span.action.stage.to_string()),
                ("micro-batch".into(), span.action.micro_batch.to_string()),
            ]),
        });
        self.steps.push(spans.collect());
    }

    /// Adds the calls that a recorder has seen, as far as they ended, between two moments.
    pub fn add_calls(&mut self, log: &FlightLog, from: SystemTime, to: SystemTime) {
        let (from, to) = (microseconds(from), microseconds(to));
        let oldest = log.entries.first().map(|entry| entry.queued_us as f64);
        self.incomplete |= log.forgotten > 0 && oldest.is_some_and(|oldest| oldest > from);
        for entry in &log.entries {
            let (Some(began), Some(ended)) = (entry.began_us, entry.ended_us) else {
                continue;
            };
            let (start, end) = (began as f64, ended as f64);
            if end < from || start > to {
                continue;
            }
            let group = log.groups.iter().find(|group| group.id == entry.group);
            let track = group.map_or(String::new(), |group| {
                format!("{} {:?} #{}", group.name, group.ranks, group.id)
            });
            let waited = start - entry.queued_us as f64;
            self.calls.push(TraceSpan {
                name: entry.operation.clone(),
                track,
                start,
                end,
                details: BTreeMap::from([
                    ("input".into(), format!("{} {:?}", entry.dtype, entry.shape)),
                    ("call site".into(), entry.site.clone()),
                    ("queued for, us".into(), format!("{waited:.0}")),
                ]),
            });
        }
        self.calls.sort_by(|a, b| a.start.total_cmp(&b.start));
    }

    /// All of it.
    pub(super) fn spans_mut(&mut self) -> impl Iterator<Item = &mut TraceSpan> {
        self.steps.iter_mut().flatten().chain(&mut self.calls)
    }
}

/// Microseconds since 1970; a time before is 0.
pub(super) fn microseconds(time: SystemTime) -> f64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_nanos() as f64 / 1e3)
}
