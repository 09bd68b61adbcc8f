//! [`Corpus`]: the bytes to learn.

use std::fs;
use std::path::{Path, PathBuf};

use burn_dist::{DistError, Result};

use super::sources::{collect, packages, registry};

/// More than this many bytes are not read: enough for hours of training on CPUs.
const LIMIT: usize = 32 << 20;

/// Text as bytes, the same on every rank that reads the same files.
#[derive(Debug, Clone)]
pub struct Corpus {
    bytes: Vec<u8>,
    files: usize,
}

impl Corpus {
    /// Reads a file, or all text files under a folder in the order of their paths.
    ///
    /// # Errors
    /// [`DistError::File`] if the path cannot be read or holds no text.
    pub fn read(path: &Path) -> Result<Self> {
        let failure = |problem: String| DistError::File {
            path: path.display().to_string(),
            problem,
        };
        let metadata = fs::metadata(path).map_err(|error| failure(error.to_string()))?;
        let mut files = Vec::new();
        if metadata.is_dir() {
            collect(path, &|_| true, &mut files).map_err(|error| failure(error.to_string()))?;
        } else {
            files.push(path.to_path_buf());
        }
        let corpus = Self::join(files)?;
        if corpus.bytes.is_empty() {
            return Err(failure(
                "holds no text; give a file or folder with some".into(),
            ));
        }
        Ok(corpus)
    }

    /// The Rust sources of the Burn crates in Cargo's registry folder, which every machine has that
    /// built this program.
    ///
    /// # Errors
    /// [`DistError::File`] if there are none, as with vendored dependencies.
    pub fn burn_sources() -> Result<Self> {
        let registry = registry();
        let failure = |problem: String| DistError::File {
            path: registry.display().to_string(),
            problem: format!("{problem}; give a text with --data PATH"),
        };
        let mut files = Vec::new();
        let is_rust = |path: &Path| path.extension().is_some_and(|e| e == "rs");
        packages(&registry, &["burn-"])
            .and_then(|packages| {
                packages
                    .iter()
                    .try_for_each(|package| collect(package, &is_rust, &mut files))
            })
            .map_err(|error| failure(error.to_string()))?;
        let corpus = Self::join(files)?;
        if corpus.bytes.is_empty() {
            return Err(failure("holds no sources of Burn".into()));
        }
        Ok(corpus)
    }

    fn join(files: Vec<PathBuf>) -> Result<Self> {
        let mut corpus = Self {
            bytes: Vec::new(),
            files: 0,
        };
        for file in files {
            let text = fs::read(&file).map_err(|error| DistError::File {
                path: file.display().to_string(),
                problem: error.to_string(),
            })?;
            corpus.bytes.extend_from_slice(&text);
            corpus.files += 1;
            if corpus.bytes.len() >= LIMIT {
                corpus.bytes.truncate(LIMIT);
                break;
            }
        }
        Ok(corpus)
    }

    /// The text.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many files it came from.
    pub fn num_files(&self) -> usize {
        self.files
    }
}
