//! [`FlightLog`]: a rank's recording as a JSON file.

use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::FlightState;
use crate::error::{DistError, Result};

/// The last calls of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlightLog {
    /// Version of this format.
    pub version: u32,
    /// The rank.
    pub rank: usize,
    /// Number of ranks in its world.
    pub world_size: usize,
    /// Number of the rank's process on its host.
    pub process: u32,
    /// When this was written: microseconds since 1970.
    pub written_us: u64,
    /// Why it was written, oldest first.
    pub reasons: Vec<FlightReason>,
    /// Calls that were overwritten by later ones.
    pub forgotten: u64,
    /// The groups that the rank has made.
    pub groups: Vec<FlightGroup>,
    /// The calls, oldest first.
    pub entries: Vec<FlightEntry>,
}

/// Why a recording was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlightReason {
    /// When: microseconds since 1970.
    pub at_us: u64,
    /// An error, or that somebody asked.
    pub text: String,
    /// Whether somebody asked.
    pub asked: bool,
}

/// A group of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlightGroup {
    /// What the entries call it.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Its global ranks, in group order.
    pub ranks: Vec<usize>,
    /// How many groups of this name and these ranks the rank had made before.
    pub generation: usize,
}

/// A call of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlightEntry {
    /// Position among all calls of the rank, from 0.
    pub number: u64,
    /// Its group's `id`.
    pub group: u64,
    /// Position among the group's collective calls, or among the pair's calls; absent before it runs.
    pub sequence: Option<u64>,
    /// Operation, as `all_reduce(sum)`.
    pub operation: String,
    /// Indices of the partners, receiver first, if the call is between two or three ranks.
    pub partners: Vec<usize>,
    /// Element type of the input.
    pub dtype: String,
    /// Shape of the input (the first six dims).
    pub shape: Vec<usize>,
    /// Where in the program: `file:line`.
    pub site: String,
    /// How far it has come.
    pub state: FlightState,
    /// When it was called: microseconds since 1970, as all times.
    pub queued_us: u64,
    /// When its turn came.
    pub began_us: Option<u64>,
    /// When it ended.
    pub ended_us: Option<u64>,
}

impl FlightLog {
    /// The version that this crate writes and reads.
    pub const VERSION: u32 = 1;

    /// Largest world that is believed.
    const MAX_RANKS: usize = 1 << 20;

    /// Largest file that is read.
    const MAX_BYTES: u64 = 64 << 20;

    /// Reads recordings: files, and the files `rank-*.json` of folders.
    ///
    /// # Errors
    /// [`DistError::File`] for what cannot be read or is no recording; [`DistError::Config`] if there is
    /// none, or two of one rank.
    pub fn read_all(paths: &[impl AsRef<Path>]) -> Result<Vec<Self>> {
        let mut logs = Vec::new();
        for path in paths {
            let path = path.as_ref();
            if !path.is_dir() {
                logs.push(Self::read(path)?);
                continue;
            }
            let files = std::fs::read_dir(path).map_err(|error| file(path, error))?;
            let mut files: Vec<_> = files
                .filter_map(|entry| Some(entry.ok()?.path()))
                .filter(|path| {
                    let name = path.file_name().unwrap_or_default().to_string_lossy();
                    name.starts_with("rank-") && name.ends_with(".json")
                })
                .collect();
            files.sort();
            for path in files {
                logs.push(Self::read(&path)?);
            }
        }
        logs.sort_by_key(|log| log.rank);
        if logs.is_empty() {
            let paths: Vec<_> = paths.iter().map(|p| p.as_ref().display()).collect();
            return Err(DistError::config(
                format!("no recordings in {paths:?}"),
                "name files rank-N.json or the folder that holds them",
            ));
        }
        if let Some(pair) = logs.windows(2).find(|pair| pair[0].rank == pair[1].rank) {
            return Err(DistError::config(
                format!("two recordings of rank {}", pair[0].rank),
                "name the recordings of one run",
            ));
        }
        Ok(logs)
    }

    fn read(path: &Path) -> Result<Self> {
        let metadata = std::fs::metadata(path).map_err(|error| file(path, error))?;
        if !metadata.is_file() {
            return Err(file(path, "not a file"));
        }
        let mut text = Vec::new();
        let opened = std::fs::File::open(path).map_err(|error| file(path, error))?;
        let read = opened.take(Self::MAX_BYTES + 1).read_to_end(&mut text);
        let size = read.map_err(|error| file(path, error))? as u64;
        if size > Self::MAX_BYTES {
            let most = Self::MAX_BYTES;
            return Err(file(
                path,
                format!("more than {most} bytes, too many for a recording"),
            ));
        }
        let log: Self = serde_json::from_slice(&text)
            .map_err(|error| file(path, format!("not a recording: {error}")))?;
        if log.world_size > Self::MAX_RANKS {
            return Err(file(path, format!("a world of {} ranks", log.world_size)));
        }
        match log.version == Self::VERSION {
            true => Ok(log),
            false => Err(file(
                path,
                format!(
                    "a recording of version {}, but {} is read here",
                    log.version,
                    Self::VERSION
                ),
            )),
        }
    }

    /// Writes `rank-N.json` into a folder, which is made; a reader never sees half of it.
    pub(super) fn write(&self, folder: &Path) -> Result<std::path::PathBuf> {
        let mut new = std::fs::DirBuilder::new();
        // For this user only, where it is ours to say: shapes and places in a program are the user's.
        new.recursive(true).mode(0o700);
        new.create(folder).map_err(|error| file(folder, error))?;
        let path = folder.join(format!("rank-{}.json", self.rank));
        let unfinished = folder.join(format!(".rank-{}.{}", self.rank, self.process));
        let text = serde_json::to_vec_pretty(self).map_err(|error| file(&path, error))?;
        let created = || {
            // Of an earlier process of this number; never through a link that somebody else laid.
            let _ = std::fs::remove_file(&unfinished);
            std::fs::File::create_new(&unfinished)
        };
        let written = created().and_then(|mut file| file.write_all(&text));
        let written = written.and_then(|()| std::fs::rename(&unfinished, &path));
        written.map_err(|error| {
            // Half a recording helps nobody.
            let _ = std::fs::remove_file(&unfinished);
            file(&path, error)
        })?;
        Ok(path)
    }
}

fn file(path: &Path, problem: impl ToString) -> DistError {
    DistError::File {
        path: path.display().to_string(),
        problem: problem.to_string(),
    }
}
