//! What tests of launched processes share.
#![allow(dead_code, unreachable_pub)]

use std::io::Write;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// No run takes longer; one that does is stuck.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The launcher, about to start this test binary's `rank_program` as ranks that behave so.
pub fn burnrun(flags: &[&str], behaviour: &str, mark: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_burnrun"));
    command
        .args(flags)
        .arg("--")
        .arg(std::env::current_exe().expect("this test"))
        .args(["--exact", "rank_program", "--nocapture"])
        .env("TEST_BEHAVIOUR", behaviour)
        .env("TEST_MARK", mark)
        .env_remove("RAYON_NUM_THREADS")
        .env_remove("BURN_DIST_SECRET")
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// What a test binary's `rank_program` does: nothing, unless the launcher has started it to behave in
/// some way. Ends the process.
pub fn be_a_rank(behave: impl FnOnce(&str) -> burn_dist::Result<i32>) {
    let Ok(behaviour) = std::env::var("TEST_BEHAVIOUR") else {
        return;
    };
    let code = behave(&behaviour).unwrap_or_else(|error| {
        eprintln!("error: {error}");
        1
    });
    let _ = std::io::stdout().flush();
    std::process::exit(code);
}

/// Waits for a child's end.
pub fn end_of(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("our child") {
            return status;
        }
        if start.elapsed() > DEADLINE {
            let _ = child.kill();
            panic!("it did not end within {DEADLINE:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A name by which the processes of one test are found.
pub fn mark(test: &str) -> String {
    format!("{test}-{}", std::process::id())
}

/// Waits for the end of a started command.
pub fn finish(mut child: Child) -> Output {
    // Pipes are small: read them while the command runs.
    let read = |mut pipe: Box<dyn std::io::Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.read_to_end(&mut bytes);
            bytes
        })
    };
    let out = read(Box::new(child.stdout.take().expect("piped")));
    let error = read(Box::new(child.stderr.take().expect("piped")));
    let status = end_of(&mut child);
    Output {
        status,
        stdout: out.join().expect("no panic"),
        stderr: error.join().expect("no panic"),
    }
}

/// Exit code, output and error output of a command.
pub fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let output = finish(command.spawn().expect("burnrun starts"));
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// Processes whose environment holds the mark.
fn left_behind(mark: &str) -> Vec<String> {
    let needle = format!("TEST_MARK={mark}");
    let processes = std::fs::read_dir("/proc").expect("Linux");
    processes
        .flatten()
        .filter(|entry| {
            let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            let status = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            // A zombie has ended.
            !status.contains(") Z ")
                && environment
                    .split(|&byte| byte == 0)
                    .any(|variable| variable == needle.as_bytes())
        })
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Fails if a process with the mark stays.
pub fn assert_nothing_left(mark: &str) {
    let start = Instant::now();
    while !left_behind(mark).is_empty() {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "left behind: {:?}",
            left_behind(mark)
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}
