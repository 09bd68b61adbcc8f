//! [`Report`]: what was found, as JSON and for people.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::machine::Machine;

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Right,
    Wrong,
    NotRun,
}

/// One subject of the check.
#[derive(Debug, Serialize)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) outcome: Outcome,
    /// What is wrong, or why it was not run.
    pub(crate) why: Vec<String>,
    pub(crate) commands: Vec<String>,
    pub(crate) seconds: f64,
    /// Rows of figures, all with the same keys.
    pub(crate) figures: Vec<Value>,
}

pub(crate) struct Report {
    machine: Machine,
    steps: Vec<Step>,
}

impl Report {
    pub(crate) fn new(machine: Machine, steps: Vec<Step>) -> Self {
        Self { machine, steps }
    }

    /// The program's code.
    pub(crate) fn code(&self) -> u8 {
        let is_right = |step: &Step| step.outcome == Outcome::Right;
        match (
            self.machine.missing.is_empty(),
            self.steps.iter().all(is_right),
        ) {
            (false, _) => 2,
            (true, false) => 1,
            (true, true) => 0,
        }
    }

    /// A few lines.
    pub(crate) fn summary(&self) -> String {
        let mut text = String::new();
        for missing in &self.machine.missing {
            let _ = writeln!(text, "MISSING  {missing}");
        }
        for step in &self.steps {
            let outcome = match step.outcome {
                Outcome::Right => "right",
                Outcome::Wrong => "WRONG",
                Outcome::NotRun => "not run",
            };
            // What is missing was said above.
            let why = step.why.first().filter(|_| self.machine.missing.is_empty());
            let why = why.map(|why| format!(": {why}"));
            let _ = writeln!(
                text,
                "{outcome:7}  {}{}",
                step.name,
                why.unwrap_or_default()
            );
        }
        text.trim_end().into()
    }

    /// # Errors
    /// If a file cannot be written.
    pub(crate) fn write(&self, folder: &Path) -> std::io::Result<()> {
        let rows = self.machine.found.iter();
        let machine = rows.map(|(subject, found)| (subject.clone(), json!(found)));
        let report = json!({
            "code": self.code(),
            "missing": self.machine.missing,
            "machine": machine.collect::<Map<_, _>>(),
            "steps": self.steps,
        });
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(folder.join("report.json"), text + "\n")?;
        std::fs::write(folder.join("report.md"), self.markdown())
    }

    fn markdown(&self) -> String {
        let mut text = String::from("# GPU check\n\n");
        let _ = writeln!(text, "```\n{}\n```\n\n## Machine\n", self.summary());
        text += "| | |\n|---|---|\n";
        for (subject, found) in &self.machine.found {
            let _ = writeln!(text, "| {subject} | {found} |");
        }
        for step in &self.steps {
            let _ = writeln!(text, "\n## {} ({:.1} s)\n", step.name, step.seconds);
            for command in &step.commands {
                let _ = writeln!(text, "    {command}");
            }
            if !step.why.is_empty() {
                text += "\n";
            }
            for why in &step.why {
                let _ = writeln!(text, "- {why}");
            }
            text += &table(&step.figures);
        }
        text
    }
}

/// Rows under the keys of the first one.
fn table(rows: &[Value]) -> String {
    let Some(keys) = rows.first().and_then(Value::as_object) else {
        return String::new();
    };
    let keys: Vec<&String> = keys.keys().collect();
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = String::from("\n");
    text += &line(keys.iter().map(|key| key.to_string()).collect());
    text += &line(keys.iter().map(|_| "---".into()).collect());
    for row in rows {
        let cells = keys.iter().map(|key| match &row[key.as_str()] {
            Value::String(text) => text.clone(),
            Value::Number(number) if number.is_f64() => {
                format!("{:.3}", number.as_f64().unwrap_or(f64::NAN))
            }
            other => other.to_string(),
        });
        text += &line(cells.collect());
    }
    text
}
