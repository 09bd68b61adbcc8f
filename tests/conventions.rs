//! The rules of the house, checked on the sources as text.
//!
//! A check takes text and returns findings, `path:line: what is wrong, what to do`. One test runs it on
//! the workspace, another on a made-up offender, so that no check passes because it sees nothing.
#![warn(missing_docs)]

#[path = "conventions/checks.rs"]
mod checks;
#[path = "conventions/offenders.rs"]
mod offenders;
#[path = "conventions/tokens.rs"]
mod tokens;
#[path = "conventions/workspace.rs"]
mod workspace;

use checks::*;
use tokens::*;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Folder or file of `burn-dist/src`, and what it may name by `crate::`; a row only names rows above it.
const ARROWS: &[(&str, &[&str])] = &[
    ("deadline", &[]),
    ("error", &[]),
    ("kernels", &[]),
    ("mesh", &["error"]),
    ("flight", &["error"]),
    ("communicator", &["deadline", "error", "flight", "kernels"]),
    ("group", &["error", "communicator"]),
    (
        "world",
        &[
            "deadline",
            "error",
            "mesh",
            "flight",
            "communicator",
            "group",
        ],
    ),
    (
        "fuzzing",
        &["error", "flight", "communicator", "group", "world"],
    ),
    ("data", &["error", "communicator", "group"]),
    ("placement", &["error", "mesh", "communicator", "group"]),
    ("random", &[]),
    ("backend", &["error", "communicator", "group", "kernels"]),
    ("fused", &["error", "backend", "kernels"]),
    ("collectives", STRATEGY),
    ("batch_norm", &["error", "group", "collectives"]),
    ("data_parallel", STRATEGY),
    ("tensor_parallel", PARALLEL_LAYERS),
    (
        "train",
        &[
            "error",
            "communicator",
            "group",
            "world",
            "data",
            "data_parallel",
        ],
    ),
    (
        "prelude",
        &[
            "error",
            "mesh",
            "communicator",
            "group",
            "world",
            "data",
            "fused",
            "collectives",
            "batch_norm",
            "data_parallel",
            "tensor_parallel",
            "train",
        ],
    ),
];

/// What a strategy may name: no other strategy.
const STRATEGY: &[&str] = &[
    "error",
    "communicator",
    "group",
    "kernels",
    "placement",
    "backend",
];

/// And what layers of a strategy may: they are made of regions.
const PARALLEL_LAYERS: &[&str] = &[
    "error",
    "mesh",
    "communicator",
    "group",
    "placement",
    "random",
    "backend",
    "collectives",
];

/// Sibling crates that a crate must not know.
const STRANGERS: &[(&str, &[&str])] = &[
    ("burn-dist", &["burn-zero", "burn-pipeline"]),
    ("burn-zero", &["burn-pipeline"]),
    ("burn-pipeline", &["burn-zero"]),
];

const MAX_LINES: usize = 400;

const NAMES_OF_NOTHING: &[&str] = &[
    "base", "util", "utils", "common", "helper", "helpers", "misc",
];

/// A text file; `path` is relative to the workspace, with `/`.
struct Source {
    path: String,
    text: String,
    tokens: Vec<Token>,
}

/// A word, a punctuation character, or a literal (a string keeps its opening quote and its text).
struct Token {
    line: usize,
    text: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        let rust = path.ends_with(".rs");
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
            tokens: if rust { tokens(text) } else { Vec::new() },
        }
    }

    fn finding(&self, line: usize, what: &str) -> String {
        format!("{}:{line}: {what}", self.path)
    }

    /// The path below `src/`, for a file of one of our crates.
    fn in_library(&self) -> Option<&str> {
        let (package, rest) = self.path.split_once('/')?;
        package.starts_with("burn-").then_some(rest)?;
        rest.strip_prefix("src/")
    }

    fn in_literal(&self, line: usize) -> bool {
        let last = |token: &Token| token.line + token.text.matches('\n').count();
        let mut tokens = self.tokens.iter();
        tokens.any(|token| (token.line + 1..=last(token)).contains(&line))
    }

    fn folder(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    fn stem(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        name.split_once('.').map_or(name, |(stem, _)| stem)
    }
}
