//! [`Launcher`]: a started command whose lines are read while it runs.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a command has written so far, and who reads it.
struct Stream {
    text: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Stream {
    fn read(from: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(String::new()));
        let lines = text.clone();
        let reader = std::thread::spawn(move || {
            let mut from = BufReader::new(from);
            let mut line = String::new();
            while from.read_line(&mut line).is_ok_and(|count| count > 0) {
                lines.lock().expect("no panic").push_str(&line);
                line.clear();
            }
        });
        Self {
            text,
            reader: Some(reader),
        }
    }

    fn so_far(&self) -> String {
        self.text.lock().expect("no panic").clone()
    }

    /// Everything, or what there is at the deadline.
    fn all(&mut self, deadline: Instant) -> String {
        if let Some(reader) = self.reader.take() {
            while !reader.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        self.so_far()
    }
}

/// A started command with piped outputs. Dropped, it is killed.
pub(crate) struct Launcher {
    child: Child,
    out: Stream,
    error: Stream,
}

impl Launcher {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.spawn().expect("the command starts");
        let out = Stream::read(child.stdout.take().expect("piped"));
        let error = Stream::read(child.stderr.take().expect("piped"));
        Self { child, out, error }
    }

    /// Waits until a line with these words has been written.
    pub(crate) fn wait_for(&self, words: &str, deadline: Instant) {
        loop {
            // Before its last words are looked at: none come after them.
            let ended = self.out.reader.as_ref().is_none_or(JoinHandle::is_finished);
            let out = self.out.so_far();
            if out.lines().any(|line| line.contains(words)) {
                return;
            }
            let error = self.error.so_far();
            let late = Instant::now() >= deadline;
            assert!(!ended && !late, "no {words} in {out}{error}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Exit code, output and error output, once it has ended.
    pub(crate) fn finish(mut self, deadline: Instant) -> (Option<i32>, String, String) {
        let status: ExitStatus = loop {
            if let Some(status) = self.child.try_wait().expect("our child") {
                break status;
            }
            let said = || self.out.so_far() + &self.error.so_far();
            assert!(Instant::now() < deadline, "it does not end: {}", said());
            std::thread::sleep(Duration::from_millis(5));
        };
        // Lines that are still in the pipes when it has ended.
        let deadline = Instant::now() + Duration::from_secs(5);
        let (out, error) = (self.out.all(deadline), self.error.all(deadline));
        (status.code(), out, error)
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // Mostly it has ended. Ranks end with their launcher.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
