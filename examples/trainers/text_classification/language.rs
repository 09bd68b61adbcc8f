//! [`Language`]: what a file is written in.

use std::path::Path;

/// A class of the classification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// Rust.
    Rust,
    /// Markdown.
    Markdown,
    /// TOML.
    Toml,
}

impl Language {
    /// All, in the order of their scores.
    pub const ALL: [Self; 3] = [Self::Rust, Self::Markdown, Self::Toml];

    /// Whether a file of this name is written in it.
    pub fn has(self, file: &Path) -> bool {
        let extension = match self {
            Self::Rust => "rs",
            Self::Markdown => "md",
            Self::Toml => "toml",
        };
        file.extension().is_some_and(|found| found == extension)
    }
}
