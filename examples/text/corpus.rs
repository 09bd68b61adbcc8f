//! [`Corpus`]: the bytes to learn.

use std::fs;
use std::path::{Path, PathBuf};

use burn_dist::{DistError, Result};

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
        let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let registry = cargo_home
            .or_else(|| home.map(|home| home.join(".cargo")))
            .unwrap_or_default()
            .join("registry/src");
        let failure = |problem: String| DistError::File {
            path: registry.display().to_string(),
            problem: format!("{problem}; give a text with --data PATH"),
        };
        let mut files = Vec::new();
        for index in sorted(&registry).map_err(|error| failure(error.to_string()))? {
            for package in sorted(&index).map_err(|error| failure(error.to_string()))? {
                let name = package.file_name().unwrap_or_default().to_string_lossy();
                if name.starts_with("burn-") {
                    let is_rust = |path: &Path| path.extension().is_some_and(|e| e == "rs");
                    collect(&package, &is_rust, &mut files)
                        .map_err(|error| failure(error.to_string()))?;
                }
            }
        }
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

fn sorted(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut entries = fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<Vec<_>>>()?;
    entries.sort();
    Ok(entries)
}

fn collect(
    folder: &Path,
    wanted: &dyn Fn(&Path) -> bool,
    files: &mut Vec<PathBuf>,
) -> std::io::Result<()> {
    for entry in sorted(folder)? {
        // Links are not followed: a loop of them would never end.
        let kind = fs::symlink_metadata(&entry)?.file_type();
        if kind.is_dir() {
            collect(&entry, wanted, files)?;
        } else if kind.is_file() && wanted(&entry) {
            files.push(entry);
        }
    }
    Ok(())
}
