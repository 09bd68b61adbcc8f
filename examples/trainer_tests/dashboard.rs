//! The dashboard of Burn's trainer on ranks: it is there, once, and its keys end all ranks.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::on_ranks::{free_port, variables};
use crate::terminal::Terminal;

const LONG: [&str; 2] = ["--epochs", "100000"];

fn digits(folder: &Path, more: &[&str]) -> Terminal {
    let artifacts = folder.join("artifacts");
    let mut command = Command::new(env!("CARGO_BIN_EXE_digits_on_ranks"));
    command
        .args(LONG)
        .arg("--artifacts")
        .arg(artifacts)
        .args(more);
    Terminal::start(command.current_dir(folder))
}

fn shows_training(terminal: &Terminal) -> bool {
    let text = terminal.text();
    text.contains("Training") && text.contains("Loss")
}

/// Presses `q` when the dashboard shows a training, then a key of what it asks.
fn quit_with(mut terminal: Terminal, key: &str) -> (Option<i32>, String) {
    terminal.wait_until("dashboard", shows_training);
    terminal.press("q");
    terminal.wait_until("question", |terminal| terminal.text().contains("[s]"));
    terminal.press(key);
    terminal.end()
}

#[test]
fn q_stops_all_ranks_and_the_program_goes_on() {
    for zero in ["0", "3"] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let terminal = digits(folder.path(), &["--ranks", "3", "--zero", zero]);
        let (code, text) = quit_with(terminal, "s");
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains("validation accuracy: "), "{text}");
    }
}

/// The cause is on the screen that the dashboard gives back, and the program fails as it would without one.
#[test]
fn a_lost_rank_closes_the_dashboard_and_is_named_after_it() {
    let port = free_port();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = env!("CARGO_BIN_EXE_digits_on_ranks");
    let mut second = Command::new(program);
    second
        .args(LONG)
        .arg("--artifacts")
        .arg(folder.path().join("second"));
    let second = second.envs(variables("1", &port)).stdout(Stdio::null());
    let mut second = second.stderr(Stdio::null()).spawn().expect("it starts");
    let mut first = Command::new(program);
    first
        .args(LONG)
        .arg("--artifacts")
        .arg(folder.path().join("first"));
    let mut terminal = Terminal::start(first.envs(variables("0", &port)));
    terminal.wait_until("dashboard", shows_training);
    second.kill().expect("it runs");
    second.wait().expect("our child");
    let (code, text) = terminal.end_after_dashboard();
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("training ended: ") && text.contains("lost rank(s) [1]"),
        "{text}"
    );
}

#[test]
fn a_killed_training_ends_with_the_cause() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (code, text) = quit_with(digits(folder.path(), &["--ranks", "3"]), "k");
    // As on one device: a panic, and again when the renderer is asked once more.
    assert_eq!(code, Some(101), "{text}");
    assert!(text.contains("Training killed by user"), "{text}");
}
