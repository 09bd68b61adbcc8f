//! [`Report`]: what a run found, as JSON and as a table.

use std::fmt;
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use burn_dist::{DistError, Result};
use serde::Serialize;

/// Bytes that one rank sends per optimizer step for gradients, parameters and norms, as the mean over
/// ranks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct BytesPerStep {
    /// Recorded by the communicator.
    pub measured: f64,
    /// `2S(n-1)/n`, S being the bytes of all gradients, as long as parameters stay whole. With stage 3:
    /// `S(n-1)/n` for gradients, and as much for parameters as often as they were gathered.
    pub formula: f64,
}

/// The result of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Number of ranks.
    pub ranks: usize,
    /// Mean loss of each step over all ranks.
    pub losses: Vec<f32>,
    /// The same, as the hexadecimal bits of the f32.
    pub loss_bits: Vec<String>,
    /// Hash of all parameters after the last step.
    pub parameter_hash: String,
    /// Bytes per rank and step.
    pub bytes_per_step: BytesPerStep,
    /// Tokens of the global batch over the median step.
    pub tokens_per_second: f64,
    /// Median step.
    pub step_seconds: f64,
    /// Highest resident memory of each rank's process, in bytes.
    pub peak_rss_bytes: Vec<u64>,
    /// Number of trained parameters; in the table only.
    #[serde(skip)]
    pub num_parameters: usize,
}

impl Report {
    /// Checks that a JSON file can be written, before a run that would be lost.
    ///
    /// # Errors
    /// [`DistError::File`].
    pub fn check_json(path: &Path) -> Result<()> {
        if path.is_dir() {
            return Err(failure(path, "is a folder".into()));
        }
        beside(path).map(drop)
    }

    /// Writes the JSON object; the file appears whole or not at all.
    ///
    /// # Errors
    /// [`DistError::File`].
    pub fn write_json(&self, path: &Path) -> Result<()> {
        let failure = |problem: String| failure(path, problem);
        let text = serde_json::to_string(self).expect("invariant: a report is plain data");
        let mut file = beside(path)?;
        writeln!(file, "{text}").map_err(|error| failure(error.to_string()))?;
        file.persist(path)
            .map_err(|error| failure(error.to_string()))?;
        Ok(())
    }
}

fn failure(path: &Path, problem: String) -> DistError {
    DistError::File {
        path: path.display().to_string(),
        problem,
    }
}

/// A temporary file in the folder of `path`; it is gone when it is dropped.
fn beside(path: &Path) -> Result<tempfile::NamedTempFile> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    // As readable as any other file that the user makes.
    tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder.unwrap_or(Path::new(".")))
        .map_err(|error| failure(path, format!("cannot be written: {error}")))
}

fn mebibytes(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.losses.first().copied().unwrap_or(f32::NAN);
        let last = self.losses.last().copied().unwrap_or(f32::NAN);
        let rss: Vec<String> = self
            .peak_rss_bytes
            .iter()
            .map(|&bytes| format!("{:.0}", mebibytes(bytes as f64)))
            .collect();
        writeln!(f, "ranks                   {}", self.ranks)?;
        writeln!(f, "parameters              {}", self.num_parameters)?;
        writeln!(f, "loss, first and last    {first:.4}  {last:.4}")?;
        writeln!(f, "tokens/s                {:.0}", self.tokens_per_second)?;
        writeln!(
            f,
            "step, median            {:.1} ms",
            self.step_seconds * 1e3
        )?;
        writeln!(
            f,
            "bytes per step          {} sent by each rank, {} by formula",
            self.bytes_per_step.measured, self.bytes_per_step.formula
        )?;
        writeln!(f, "peak memory per rank    {} MiB", rss.join(", "))?;
        write!(f, "parameter hash          {}", &self.parameter_hash[..16])
    }
}
