//! [`Artifacts`]: where logs and checkpoints go.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// The folder that a training writes into.
#[derive(Debug)]
pub enum Artifacts {
    /// A folder that stays.
    Kept(PathBuf),
    /// A folder that is deleted when the value is dropped.
    Temporary(TempDir),
}

impl Artifacts {
    /// `folder`, made if it is missing, or a new temporary one.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn new(folder: Option<&Path>) -> io::Result<Self> {
        let Some(folder) = folder else {
            return TempDir::new().map(Self::Temporary);
        };
        fs::create_dir_all(folder).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", folder.display()))
        })?;
        Ok(Self::Kept(folder.to_path_buf()))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        match self {
            Self::Kept(folder) => folder,
            Self::Temporary(folder) => folder.path(),
        }
    }
}
