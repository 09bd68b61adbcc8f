//! The dashboard of Burn's trainer on ranks: it is there, once, and its keys end all ranks.

use std::path::Path;
use std::process::Command;

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

/// Presses `q` when the dashboard shows a training, then a key of what it asks.
fn quit_with(mut terminal: Terminal, key: &str) -> (Option<i32>, String) {
    terminal.wait_until("dashboard", |terminal| {
        let text = terminal.text();
        text.contains("Training") && text.contains("Loss")
    });
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

#[test]
fn a_killed_training_ends_with_the_cause() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (code, text) = quit_with(digits(folder.path(), &["--ranks", "3"]), "k");
    // As on one device: a panic, when the renderer is asked again.
    assert_eq!(code, Some(101), "{text}");
    let cause = "training ended: rank 0 failed: it panicked: Killing training from user input";
    assert!(text.contains(cause), "{text}");
}
