//! Pictures of a step, simulated or measured.
//!
//! | file | what |
//! |---|---|
//! | `step_chart.rs` | a step as an SVG chart, a row per rank |
//! | `rank_trace.rs` | what one rank did, by its own clock |
//! | `clock_offset.rs` | that clock against the first rank's |
//! | `step_trace.rs` | all ranks on one clock, for Perfetto and `chrome://tracing` |

mod clock_offset;
mod rank_trace;
mod step_chart;
mod step_trace;

pub use clock_offset::ClockOffset;
pub use rank_trace::{RankTrace, TraceSpan};
pub use step_chart::StepChart;
pub use step_trace::StepTrace;

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use burn_dist::{DistError, Result};

/// Writes a file that appears whole or not at all.
fn write_whole(path: &Path, text: &str) -> Result<()> {
    let failure = |problem: String| DistError::File {
        path: path.display().to_string(),
        problem,
    };
    let folder = path.parent();
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
    // As readable as any other file that the user makes.
    let beside = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder.unwrap_or(Path::new(".")));
    let mut file = beside.map_err(|error| failure(format!("cannot be written: {error}")))?;
    file.write_all(text.as_bytes())
        .map_err(|error| failure(error.to_string()))?;
    file.persist(path)
        .map_err(|error| failure(error.to_string()))?;
    Ok(())
}
