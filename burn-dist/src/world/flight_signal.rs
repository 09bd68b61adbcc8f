//! [`FlightSignal`]: SIGUSR1 makes ranks write down their last calls.

use std::io::Read;
use std::net::Shutdown;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::SIGUSR1;

use crate::error::{DistError, Result};
use crate::flight::FlightRecorder;

/// Where recordings go that nobody has named a folder for: one of the launcher's process.
pub(super) fn folder(process: u32) -> PathBuf {
    std::env::temp_dir().join(format!("burn-dist-flight-{process}"))
}

/// Asks a process to write its recording, if it listens: others would die of the signal.
pub(super) fn ask(process: Pid) {
    if listens(process) {
        // One that has just ended has nothing more to write.
        let _ = kill_process(process, Signal::USR1);
    }
}

/// Whether the process catches SIGUSR1, as the system sees it.
fn listens(process: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero()));
    let Ok(status) = status else {
        return false;
    };
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask >> (SIGUSR1 - 1) & 1 == 1)
}

/// Removes recordings that an earlier launch left in the folder.
pub(super) fn clear(folder: &Path, ranks: Range<usize>) {
    for rank in ranks {
        // Mostly there is none.
        let _ = std::fs::remove_file(folder.join(format!("rank-{rank}.json")));
    }
}

/// Listens until it is dropped.
#[derive(Debug)]
pub(super) struct FlightSignal {
    signal: signal_hook::SigId,
    stop: UnixStream,
    writer: Option<JoinHandle<()>>,
}

impl FlightSignal {
    /// Writes all these recordings whenever this process gets SIGUSR1; nothing without recordings.
    pub(super) fn listen(recorders: Vec<FlightRecorder>) -> Result<Option<Self>> {
        if recorders.is_empty() {
            return Ok(None);
        }
        let failure = |error: std::io::Error| {
            DistError::config(
                format!("SIGUSR1 cannot be watched: {error}"),
                "look at the limits of open files and threads, or do without `flight_recorder`",
            )
        };
        let (mut rings, told) = UnixStream::pair().map_err(failure)?;
        let stop = rings.try_clone().map_err(failure)?;
        let signal = signal_hook::low_level::pipe::register(SIGUSR1, told).map_err(failure)?;
        let writer = std::thread::Builder::new()
            .name("flight".into())
            .spawn(move || {
                let mut byte = [0];
                while rings.read_exact(&mut byte).is_ok() {
                    for recorder in &recorders {
                        if let Err(error) = recorder.write("asked for by SIGUSR1", true) {
                            tracing::warn!("the last calls could not be written: {error}");
                        }
                    }
                }
            })
            .map_err(failure)?;
        Ok(Some(Self {
            signal,
            stop,
            writer: Some(writer),
        }))
    }
}

impl Drop for FlightSignal {
    fn drop(&mut self) {
        signal_hook::low_level::unregister(self.signal);
        // Ends the writer's read, whoever still holds the other end.
        let _ = self.stop.shutdown(Shutdown::Both);
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}
