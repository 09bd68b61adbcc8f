//! Processes that are killed, freeze, end early or stay away: every survivor learns who, in time, and
//! the ranks' recordings say the same.
//!
//! The program that the launcher starts is this test binary again: `rank_program` below.

mod launched;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use burn_dist::communicator::ReduceOp;
use burn_dist::flight::{Diagnosis, FlightLog};
use burn_dist::{DistError, World};
use launched::{assert_nothing_left, be_a_rank, burnrun, end_of, mark, run};
use rustix::process::{Pid, Signal, getpid, kill_process};

/// The rank that everything happens to, of three.
const CULPRIT: usize = 1;

/// The first call that it does not make.
const CALL: usize = 3;

#[test]
fn rank_program() {
    be_a_rank(|behaviour| behave(behaviour).map(|()| 0));
}

/// Says so when it is dropped.
struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        println!("the guard is dropped");
    }
}

fn behave(behaviour: &str) -> burn_dist::Result<()> {
    let _guard = Guard;
    let is = |name: &str| {
        let rank = std::env::var("RANK").expect("burnrun sets RANK");
        behaviour == name && rank == CULPRIT.to_string()
    };
    let long = Duration::from_secs(600);
    if is("absent") {
        std::thread::sleep(long);
    }
    let world = World::from_env()?;
    let group = world.whole()?;
    for call in 0.. {
        if call == CALL {
            println!("at the call");
            if is("killed") {
                let _ = kill_process(getpid(), Signal::KILL);
            } else if is("frozen") {
                let _ = kill_process(getpid(), Signal::STOP);
                // A process does not stop at once.
                std::thread::sleep(long);
            } else if is("early") {
                std::process::exit(0);
            } else if is("late") {
                std::thread::sleep(long);
            }
        }
        if behaviour == "healthy" && call == 40 {
            return Ok(());
        }
        if behaviour == "healthy" {
            std::thread::sleep(Duration::from_millis(50));
        }
        if let Err(error) = group.all_reduce_values(vec![1.0f32; 5], ReduceOp::Sum) {
            let again = group.barrier().expect_err("the group has failed");
            println!("again: {again}");
            assert!(matches!(again, DistError::Poisoned { .. }), "{again}");
            return Err(error);
        }
    }
    Ok(())
}

struct Outcome {
    code: Option<i32>,
    out: String,
    error: String,
    found: Diagnosis,
}

/// Three ranks, one of which behaves so; what the launcher says, and what the recordings say.
fn launch(behaviour: &str) -> Outcome {
    let mark = mark(behaviour);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text");
    let flags = [
        "--nproc-per-node",
        "3",
        "--step-timeout",
        "2",
        "--flight-dir",
        path,
    ];
    let start = Instant::now();
    let (code, out, error) = run(&mut burnrun(&flags, behaviour, &mark));
    // Two seconds of patience, three of grace for a rank that does not end.
    assert!(start.elapsed() < Duration::from_secs(15), "{error}");
    assert_nothing_left(&mark);
    let found = diagnose(folder.path());
    Outcome {
        code,
        out,
        error,
        found,
    }
}

/// By the launcher, which must print what the library says.
fn diagnose(folder: &Path) -> Diagnosis {
    let mut command = Command::new(env!("CARGO_BIN_EXE_burnrun"));
    command.arg("diagnose").arg(folder);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let (code, out, error) = run(&mut command);
    assert_eq!(code, Some(0), "{error}");
    let logs = FlightLog::read_all(&[folder]).expect("recordings");
    let found = Diagnosis::of(&logs);
    assert_eq!(out, found.to_string());
    found
}

/// Survivors that end with this error, have dropped what they held, and were refused a later call.
fn check_survivors(outcome: &Outcome, words: &str) {
    let Outcome { out, error, .. } = outcome;
    for rank in [0, 2] {
        let own =
            format!("[{rank}] error: rank {rank}, group world, call {CALL} (all_reduce(sum)): ");
        let line = error.lines().find(|line| line.starts_with(&own));
        let line = line.unwrap_or_else(|| panic!("no error of rank {rank}: {error}"));
        assert!(line.contains(words) && line.contains("[1]"), "{line}");
        let dropped = format!("[{rank}] the guard is dropped");
        assert!(out.contains(&dropped), "{out}");
        let refused = format!("[{rank}] again: rank {rank}, group world: refused barrier");
        assert!(out.contains(&refused), "{out}");
    }
    let (before, last) = error
        .split_once("failed first")
        .expect("the cause is named");
    assert!(before.contains("burnrun diagnose"), "{error}");
    assert!(!last.contains("burnrun diagnose"), "{error}");
}

#[test]
fn a_killed_rank() {
    let outcome = launch("killed");
    check_survivors(&outcome, "lost rank(s)");
    assert_eq!(outcome.code, Some(128 + 9), "{}", outcome.error);
    let last = outcome.error.lines().rev().find(|l| !l.starts_with("  "));
    assert!(last.is_some_and(|l| l.contains("rank 1 failed first, with signal 9")));
    assert_eq!(outcome.found.missing, [CULPRIT]);
    assert_eq!(outcome.found.culprits, [CULPRIT], "{}", outcome.found);
}

#[test]
fn a_frozen_rank() {
    let outcome = launch("frozen");
    check_survivors(&outcome, "no answer from rank(s)");
    assert_eq!(outcome.code, Some(1), "{}", outcome.error);
    assert_eq!(outcome.found.missing, [CULPRIT]);
    assert_eq!(outcome.found.culprits, [CULPRIT], "{}", outcome.found);
}

#[test]
fn a_rank_that_ends_early() {
    let outcome = launch("early");
    check_survivors(&outcome, "lost rank(s)");
    assert_eq!(outcome.code, Some(1), "{}", outcome.error);
    assert_eq!(outcome.found.culprits, [CULPRIT], "{}", outcome.found);
}

#[test]
fn a_late_rank_says_where_it_was() {
    let outcome = launch("late");
    check_survivors(&outcome, "no answer from rank(s)");
    assert_eq!(outcome.code, Some(1), "{}", outcome.error);
    assert!(outcome.found.missing.is_empty(), "{}", outcome.found);
    assert_eq!(outcome.found.culprits, [CULPRIT]);
    let text = outcome.found.to_string();
    for words in [
        "rank 0 waits for [1] in group world, call 3, all_reduce(sum) f32 [5], from burn-dist/tests/peer_faults.rs:",
        "=> rank 1 is behind: in the program itself",
        "rank 1: asked for by SIGUSR1",
    ] {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
}

#[test]
fn a_rank_that_never_arrives() {
    let mark = mark("absent");
    let flags = ["--nproc-per-node", "3", "--startup-timeout", "2"];
    let start = Instant::now();
    let (code, out, error) = run(&mut burnrun(&flags, "absent", &mark));
    assert!(start.elapsed() < Duration::from_secs(15));
    assert_eq!(code, Some(1), "{error}");
    for rank in [0, 2] {
        let named = error.lines().any(|line| {
            line.starts_with(&format!("[{rank}] error: "))
                && line.contains("rank(s) [1] did not come to the world within 2s")
        });
        assert!(named, "{error}");
        assert!(
            out.contains(&format!("[{rank}] the guard is dropped")),
            "{out}"
        );
    }
    assert_nothing_left(&mark);
}

#[test]
fn ranks_write_their_recordings_while_they_run_and_go_on() {
    let mark = mark("healthy");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text");
    let flags = ["--nproc-per-node", "3", "--flight-dir", path];
    let mut child = burnrun(&flags, "healthy", &mark).spawn().expect("started");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut ready = 0;
    while ready < 3 {
        let mut line = String::new();
        assert!(out.read_line(&mut line).expect("text") > 0, "ended early");
        ready += usize::from(line.contains("at the call"));
    }
    let launcher = Pid::from_raw(child.id() as i32).expect("a process");
    kill_process(launcher, Signal::USR1).expect("ours");
    let start = Instant::now();
    let written = |rank: usize| folder.path().join(format!("rank-{rank}.json")).exists();
    while !(0..3).all(written) {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "nothing is written"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let logs = FlightLog::read_all(&[folder.path()]).expect("recordings");
    for log in &logs {
        assert_eq!(log.reasons[0].text, "asked for by SIGUSR1");
        assert!(log.entries.len() >= CALL, "{log:?}");
    }
    // All ranks are within a call of each other.
    let text = Diagnosis::of(&logs).to_string();
    assert!(text.contains("group world [0, 1, 2]"), "{text}");
    let status = end_of(&mut child);
    assert_eq!(status.code(), Some(0), "the signal harmed the ranks");
    assert_nothing_left(&mark);
}

#[test]
fn what_is_no_recording_is_refused_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let bad = folder.path().join("rank-0.json");
    std::fs::write(&bad, "{\"version\": 1}").expect("written");
    let missing = folder.path().join("nothing.json");
    for (argument, words) in [
        (bad.as_path(), "not a recording"),
        (missing.as_path(), "nothing.json"),
        (Path::new("--bogus"), "--bogus"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_burnrun"));
        command.arg("diagnose").arg(argument);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let (code, _, error) = run(&mut command);
        assert_eq!(code, Some(2), "{error}");
        assert!(error.contains(words), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}
