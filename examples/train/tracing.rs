//! [`Traced`]: what a rank did in its last steps.

use std::collections::VecDeque;
use std::path::Path;
use std::time::SystemTime;

use burn_dist::{DistError, ProcessGroup, Result, World};
use burn_pipeline::ActionSpan;
use burn_pipeline::pictures::{RankTrace, StepTrace};

use super::Arguments;

/// Steps that are kept.
const STEPS: usize = 3;

/// The last steps, oldest first.
#[derive(Debug, Default)]
pub(super) struct Traced(VecDeque<Step>);

#[derive(Debug)]
struct Step {
    start: SystemTime,
    end: SystemTime,
    actions: Vec<ActionSpan>,
}

impl Traced {
    pub(super) fn begin(&mut self) {
        if self.0.len() == STEPS {
            self.0.pop_front();
        }
        let now = SystemTime::now();
        self.0.push_back(Step {
            start: now,
            end: now,
            actions: Vec::new(),
        });
    }

    pub(super) fn end(&mut self, actions: &[ActionSpan]) {
        if let Some(step) = self.0.back_mut() {
            step.end = SystemTime::now();
            step.actions = actions.to_vec();
        }
    }

    /// Writes all ranks' steps, on the first one. Collective.
    pub(super) fn write(
        &self,
        folder: &Path,
        arguments: &Arguments,
        (world, everyone): (&World, &ProcessGroup),
    ) -> Result<()> {
        let mut trace = RankTrace::new(world.rank());
        for step in self.0.iter().filter(|step| !step.actions.is_empty()) {
            trace.add_step(&step.actions);
        }
        if let (Some(first), Some(last), Some(recorder)) =
            (self.0.front(), self.0.back(), world.flight_recorder())
        {
            trace.add_calls(&recorder.log("a trace", true), first.start, last.end);
        }
        let Some(trace) = StepTrace::gather(everyone, trace)? else {
            return Ok(());
        };
        trace.write_chrome(&folder.join("trace.json"))?;
        let schedule = arguments.schedule.as_ref();
        let schedule = schedule.map_or("1f1b".into(), ToString::to_string);
        let title = format!(
            "{schedule}, {} ranks, {} micro-batches",
            everyone.size(),
            arguments.micro_batches
        );
        match trace.chart(title) {
            Some(chart) => chart.write(&folder.join("step.svg")),
            None => Ok(()),
        }
    }
}

/// Makes the folder, before a run whose trace would be lost.
pub(super) fn check_folder(folder: &Path) -> Result<()> {
    let failure = |problem: std::io::Error| DistError::File {
        path: folder.display().to_string(),
        problem: format!("cannot hold a trace: {problem}"),
    };
    std::fs::create_dir_all(folder).map_err(failure)?;
    tempfile::NamedTempFile::new_in(folder).map_err(failure)?;
    Ok(())
}
