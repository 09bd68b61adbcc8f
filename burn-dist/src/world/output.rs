//! What becomes of the ranks' output.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// How lines of ranks appear.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutputStyle {
    /// Each line with its rank's number: `[1] text`.
    #[default]
    Numbered,
    /// The same, but rank 0's as they are; on a terminal it writes to it directly, so that a
    /// progress bar works.
    RankZeroUntouched,
    /// On a terminal rank 0 has it to itself, its input too, as a dashboard needs; lines of other ranks are shown
    /// only when one fails. Elsewhere as `RankZeroUntouched`.
    RankZeroTerminal,
}

/// Lines that are kept to be shown again when a rank fails.
const LAST_LINES: usize = 20;

/// A line longer than this is cut in pieces.
const LONGEST_LINE: u64 = 64 << 10;

/// The last lines that a rank wrote to its error stream.
pub(super) type LastLines = Arc<Mutex<VecDeque<String>>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Error,
}

impl Stream {
    pub(super) fn write(self, bytes: &[u8]) {
        // A reader that has gone away is no reason to stop the ranks.
        let _ = match self {
            Self::Out => {
                let mut out = std::io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush())
            }
            Self::Error => std::io::stderr().lock().write_all(bytes),
        };
    }
}

impl OutputStyle {
    /// Whether a rank has the terminal to itself.
    pub(super) fn owns_terminal(self, rank: usize) -> bool {
        rank == 0 && self.leaves_terminal()
    }

    fn leaves_terminal(self) -> bool {
        self == Self::RankZeroTerminal && std::io::stdout().is_terminal()
    }

    /// Where a rank's stream goes: to a pipe, or straight to the terminal.
    pub(super) fn stdio(self, rank: usize, stream: Stream) -> Stdio {
        let terminal = match stream {
            Stream::Out => std::io::stdout().is_terminal(),
            Stream::Error => std::io::stderr().is_terminal(),
        };
        match self != Self::Numbered && rank == 0 && terminal {
            true => Stdio::inherit(),
            false => Stdio::piped(),
        }
    }

    /// Passes a rank's lines on, whole lines at a time, until its stream ends.
    pub(super) fn forward(
        self,
        rank: usize,
        stream: Stream,
        from: impl Read + Send + 'static,
        last: LastLines,
    ) -> std::io::Result<JoinHandle<()>> {
        let prefix = match self {
            Self::RankZeroUntouched | Self::RankZeroTerminal if rank == 0 => String::new(),
            _ => format!("[{rank}] "),
        };
        let shown = rank == 0 || !self.leaves_terminal();
        std::thread::Builder::new()
            .name(format!("output {rank}"))
            .spawn(move || {
                let mut from = BufReader::new(from);
                let mut line = Vec::new();
                loop {
                    line.clear();
                    let mut piece = from.by_ref().take(LONGEST_LINE);
                    match piece.read_until(b'\n', &mut line) {
                        Ok(count) if count > 0 => {}
                        _ => return,
                    }
                    if line.last() != Some(&b'\n') {
                        line.push(b'\n');
                    }
                    if shown {
                        stream.write(&[prefix.as_bytes(), &line].concat());
                    }
                    if stream == Stream::Error {
                        let text = String::from_utf8_lossy(&line).trim_end().to_string();
                        let mut last = last.lock().expect("invariant: no panic under this lock");
                        if last.len() == LAST_LINES {
                            last.pop_front();
                        }
                        last.push_back(text);
                    }
                }
            })
    }
}
