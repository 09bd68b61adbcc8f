//! Starts a program as a user does, with a deadline.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// No run takes longer; one that does is stuck.
const DEADLINE: Duration = Duration::from_secs(240);

/// Code, standard output, error stream of `program`, started in `folder`.
///
/// # Panics
/// If the program does not end in time.
pub(crate) fn run(
    program: &str,
    arguments: &[&str],
    variables: &[(&str, &str)],
    folder: &Path,
) -> (Option<i32>, String, String) {
    let streams = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str| streams.path().join(name);
    // Files rather than pipes: a process that is left behind must not keep the test waiting.
    let (out, error) = (file("out"), file("error"));
    let create = |path: &Path| std::fs::File::create(path).expect("created");
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .envs(variables.iter().copied())
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null())
        .stdout(create(&out))
        .stderr(create(&error))
        .spawn()
        .expect("the program starts");
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("our child") {
            break status;
        }
        if start.elapsed() > DEADLINE {
            let _ = child.kill();
            panic!("{program} {arguments:?} did not end within {DEADLINE:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let read = |path: &Path| std::fs::read_to_string(path).expect("text");
    (status.code(), read(&out), read(&error))
}
