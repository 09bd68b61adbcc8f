//! [`StepTrace`]: all ranks on one clock.

use std::path::Path;

use burn_dist::{DistError, ProcessGroup, Result};
use serde_json::{Value, json};

use super::{ClockOffset, RankTrace, StepChart, TraceSpan, write_whole};
use crate::{Action, TimeSpan};

/// What all ranks did, on the first one's clock.
#[derive(Debug, Clone, PartialEq)]
pub struct StepTrace {
    ranks: Vec<RankTrace>,
    error: f64,
}

impl StepTrace {
    /// What the ranks of a group did, on its first rank; `None` on the others. Clocks are compared first.
    /// Collective.
    ///
    /// # Errors
    /// What the group met.
    pub fn gather(group: &ProcessGroup, mut own: RankTrace) -> Result<Option<Self>> {
        let clock = ClockOffset::measure(group)?;
        for span in own.spans_mut() {
            span.start -= clock.microseconds;
            span.end -= clock.microseconds;
        }
        let text = serde_json::to_string(&(clock.error, own));
        let text = text.expect("invariant: a trace is plain data");
        let texts = group.all_gather_text(&text)?;
        if group.index() != 0 {
            return Ok(None);
        }
        let mut ranks = Vec::new();
        let mut error = 0.0f64;
        for (index, text) in texts.iter().enumerate() {
            let (of_rank, trace): (f64, RankTrace) =
                serde_json::from_str(text).map_err(|error| {
                    DistError::config(
                        format!("rank {} sent no trace: {error}", group.ranks()[index]),
                        "run the same version of the program on every rank",
                    )
                })?;
            error = error.max(of_rank);
            ranks.push(trace);
        }
        Ok(Some(Self { ranks, error }))
    }

    /// Each rank's.
    pub fn ranks(&self) -> &[RankTrace] {
        &self.ranks
    }

    /// How wrong two ranks' times can be against each other, in microseconds.
    pub fn clock_error(&self) -> f64 {
        self.error
    }

    /// The last step's passes in milliseconds; `None` if no rank has run a step.
    pub fn chart(&self, title: impl Into<String>) -> Option<StepChart> {
        let passes = |rank: &RankTrace| -> Vec<TimeSpan> {
            let last = rank.steps.last().into_iter().flatten();
            last.filter_map(|span| {
                Some(TimeSpan {
                    action: span.name.parse::<Action>().ok()?,
                    start: span.start / 1e3,
                    end: span.end / 1e3,
                })
            })
            .collect()
        };
        let ranks: Vec<Vec<TimeSpan>> = self.ranks.iter().map(passes).collect();
        let has_passes = ranks.iter().any(|rank| !rank.is_empty());
        has_passes.then(|| StepChart::new(title, "ms", ranks))
    }

    /// The trace as the JSON that Perfetto and `chrome://tracing` read: a process per rank, a track of its
    /// actions and idle times, and one for each group's calls.
    pub fn to_chrome(&self) -> String {
        let spans = self.ranks.iter().flat_map(|rank| {
            let actions = rank.steps.iter().flatten();
            actions.chain(&rank.calls)
        });
        let zero = spans.map(|span| span.start).fold(f64::INFINITY, f64::min);
        let mut events = Vec::new();
        for rank in &self.ranks {
            let pid = rank.rank;
            events.push(metadata("process_name", pid, 0, &format!("rank {pid}")));
            events.push(metadata("thread_name", pid, 0, "stages"));
            for (number, step) in rank.steps.iter().enumerate() {
                let actions = step.iter().map(|span| event(span, "action", pid, 0, zero));
                events.extend(actions);
                let idle = self.idle(rank, number);
                events.extend(idle.map(|span| event(&span, "idle", pid, 0, zero)));
            }
            let mut tracks: Vec<&str> = Vec::new();
            for call in &rank.calls {
                let known = tracks.iter().position(|track| *track == call.track);
                let track = known.unwrap_or_else(|| {
                    tracks.push(&call.track);
                    let tid = tracks.len();
                    events.push(metadata("thread_name", pid, tid, &call.track));
                    tid - 1
                });
                events.push(event(call, "call", pid, track + 1, zero));
            }
        }
        let incomplete = self.ranks.iter().any(|rank| rank.incomplete);
        let trace = json!({
            "traceEvents": events,
            "displayTimeUnit": "ms",
            "otherData": {
                "clock error, us": self.error,
                "calls are missing": incomplete,
            },
        });
        trace.to_string()
    }

    /// Writes [`to_chrome`](Self::to_chrome); the file appears whole or not at all.
    ///
    /// # Errors
    /// [`DistError::File`].
    pub fn write_chrome(&self, path: &Path) -> Result<()> {
        write_whole(path, &self.to_chrome())
    }

    /// Where a rank has no pass between the first and the last moment of a step, of all ranks.
    fn idle<'a>(&'a self, rank: &'a RankTrace, step: usize) -> impl Iterator<Item = TraceSpan> {
        let all = self
            .ranks
            .iter()
            .filter_map(move |rank| rank.steps.get(step));
        let (mut start, mut end) = (f64::INFINITY, f64::NEG_INFINITY);
        for span in all.flatten().filter(|span| is_pass(span)) {
            (start, end) = (start.min(span.start), end.max(span.end));
        }
        // A gap ends where the next action of any kind begins: boxes of one track do not cross.
        let mut edges: Vec<(f64, f64)> = rank.steps[step]
            .iter()
            .map(|span| (span.start, span.end))
            .collect();
        edges.sort_by(|a, b| a.0.total_cmp(&b.0));
        edges.push((end, end));
        let mut gaps = Vec::new();
        let mut at = start;
        for (from, to) in edges {
            if from > at {
                gaps.push((at, from.min(end)));
            }
            at = at.max(to);
        }
        gaps.into_iter()
            .filter(|(from, to)| to > from)
            .map(|(start, end)| TraceSpan {
                name: "idle".into(),
                track: "stages".into(),
                start,
                end,
                details: Default::default(),
            })
    }
}

fn is_pass(span: &TraceSpan) -> bool {
    let action = span.name.parse::<Action>();
    action.is_ok_and(|action| action.kind.is_compute())
}

fn metadata(name: &str, pid: usize, tid: usize, value: &str) -> Value {
    json!({ "ph": "M", "name": name, "pid": pid, "tid": tid, "args": { "name": value } })
}

fn event(span: &TraceSpan, category: &str, pid: usize, tid: usize, zero: f64) -> Value {
    json!({
        "ph": "X",
        "name": span.name,
        "cat": category,
        "pid": pid,
        "tid": tid,
        "ts": span.start - zero,
        "dur": span.end - span.start,
        "args": span.details,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::{ActionSpan, Schedule, StageCosts, simulate};

    /// A simulated step, a millisecond per unit.
    fn trace(schedule: &Schedule, p: usize, m: usize) -> (StepTrace, f64) {
        let plan = schedule.plan(p, m).expect("right");
        let step = simulate(&plan, &StageCosts::units(plan.num_stages())).expect("right");
        let at = |time: f64| SystemTime::UNIX_EPOCH + Duration::from_micros((time * 1e3) as u64);
        let ranks = step.ranks.iter().enumerate().map(|(number, spans)| {
            let spans: Vec<ActionSpan> = spans
                .iter()
                .map(|span| ActionSpan {
                    action: span.action,
                    start: at(span.start),
                    end: at(span.end),
                })
                .collect();
            let mut rank = RankTrace::new(number);
            rank.add_step(&spans);
            rank
        });
        let trace = StepTrace {
            ranks: ranks.collect(),
            error: 0.0,
        };
        (trace, step.bubble())
    }

    #[test]
    fn idle_times_are_the_simulators_and_boxes_do_not_cross() {
        for schedule in [Schedule::GPipe, Schedule::OneFOneB, Schedule::ZeroBubbleH1] {
            let (trace, bubble) = trace(&schedule, 4, 6);
            let chrome: Value = serde_json::from_str(&trace.to_chrome()).expect("JSON");
            let events = chrome["traceEvents"].as_array().expect("a list");
            let mut tracks: HashMap<(u64, u64), Vec<(f64, f64)>> = HashMap::new();
            let (mut idle, mut busy) = (0.0, 0.0);
            for event in events.iter().filter(|event| event["ph"] == "X") {
                let number = |key: &str| event[key].as_f64().expect("a number");
                let (start, length) = (number("ts"), number("dur"));
                match event["cat"].as_str() {
                    Some("idle") => idle += length,
                    _ => busy += length,
                }
                let track = (number("pid") as u64, number("tid") as u64);
                tracks
                    .entry(track)
                    .or_default()
                    .push((start, start + length));
            }
            assert_eq!(tracks.len(), 4);
            assert!((idle / (idle + busy) - bubble).abs() < 1e-9, "{schedule}");
            for spans in tracks.values_mut() {
                spans.sort_by(|a, b| a.0.total_cmp(&b.0));
                assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0 + 1e-9));
            }
            let chart = trace.chart("a step").expect("there are passes");
            assert!((chart.bubble() - bubble).abs() < 1e-9, "{schedule}");
        }
    }
}
