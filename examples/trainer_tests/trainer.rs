//! [`Trainer`]: a program under test.

use std::fs;
use std::path::Path;

use crate::run::run;

/// A trainer, the beginning of its last line, and the number there that shows that it has learned.
#[derive(Debug)]
pub(crate) struct Trainer {
    pub(crate) program: &'static str,
    pub(crate) arguments: &'static [&'static str],
    pub(crate) result: &'static str,
    pub(crate) learned: fn(f64) -> bool,
}

impl Trainer {
    /// The last line and the number in it of a run that keeps its logs in `artifacts`.
    pub(crate) fn train(&self, more: &[&str], artifacts: &Path) -> (String, f64) {
        let artifacts = artifacts.to_str().expect("plain letters");
        let more = [more, &["--artifacts", artifacts]].concat();
        self.result_of(&more, &[])
    }

    /// The same of a run that is told nothing about a folder.
    pub(crate) fn result_of(&self, more: &[&str], variables: &[(&str, &str)]) -> (String, f64) {
        let arguments = [self.arguments, more].concat();
        let empty = tempfile::tempdir().expect("a temporary folder");
        let (code, out, error) = run(self.program, &arguments, variables, empty.path());
        assert_eq!(code, Some(0), "{arguments:?}: {error}");
        let left: Vec<_> = fs::read_dir(empty.path()).expect("a folder").collect();
        assert!(
            left.is_empty(),
            "{arguments:?} left {left:?} where it was started"
        );
        let line = out.lines().last().unwrap_or_default().to_owned();
        let number = line
            .strip_prefix(self.result)
            .and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        let number = number.unwrap_or_else(|| panic!("no number after {:?}: {line}", self.result));
        (line, number)
    }
}

/// The losses logged under `artifacts` in the first `epochs`: paths and lines.
pub(crate) fn logs(artifacts: &Path, epochs: usize) -> Vec<(String, Vec<String>)> {
    let mut logs = Vec::new();
    for split in ["train", "valid"] {
        for epoch in 1..=epochs {
            let name = format!("{split}/epoch-{epoch}/Loss.log");
            let text = fs::read_to_string(artifacts.join(&name)).expect("a log");
            logs.push((name, text.lines().map(str::to_owned).collect()));
        }
    }
    logs
}
