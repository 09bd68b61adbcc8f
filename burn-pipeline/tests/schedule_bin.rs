//! The binary `schedule` as a user starts it.

use std::path::Path;
use std::process::{Command, Output};

fn schedule(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_schedule"));
    let output = command.args(arguments).current_dir(folder).output();
    output.expect("it starts")
}

fn files(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).expect("readable");
    let names = files.map(|file| file.expect("readable").file_name());
    names.map(|name| name.to_string_lossy().into()).collect()
}

#[test]
fn a_schedule_is_shown_and_drawn() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = schedule(folder.path(), &["show", "1f1b", "-p", "4", "-m", "8"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("text");
    for words in [
        "rank 3: .   .   .   3F0 3B0",
        "makespan                 33.0000",
        "bubble over total        0.2727",
        "bubble over ideal time   0.3750",
        "live activations         4 3 2 1",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_eq!(files(folder.path()), ["1f1b-p4-m8.svg"]);
    let lowered = ["show", "zb-h1", "-p", "2", "-m", "3", "--lowered"];
    let svg = [
        &lowered[..],
        &["--svg", "own.svg", "--costs", "1,1,0.5,0.1"],
    ]
    .concat();
    let output = schedule(folder.path(), &svg);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("rank 1 runs 1RECV_F0"), "{text}");
    assert!(folder.path().join("own.svg").is_file());
}

#[test]
fn a_file_is_a_schedule_and_a_wrong_one_is_explained() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let write = |text: &str| std::fs::write(folder.path().join("own.txt"), text).expect("written");
    write("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n");
    let show = ["show", "own.txt", "-p", "2", "-m", "2"];
    assert!(schedule(folder.path(), &show).status.success());
    assert!(folder.path().join("own.txt-p2-m2.svg").is_file());
    write("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0\n");
    let output = schedule(folder.path(), &show);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).expect("text");
    assert!(error.contains(">>"), "the cell is marked: {error}");
}

#[test]
fn bad_input_is_one_line_and_no_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (arguments, words) in [
        (&["show", "2f2b", "-p", "2", "-m", "2"][..], "2f2b"),
        (
            &["show", "interleaved:2", "-p", "2", "-m", "3"],
            "take 4 micro-batches",
        ),
        (&["show", "1f1b", "-p", "0", "-m", "3"], "at least one"),
        (&["show", "1f1b", "-p", "2"], "required arguments"),
        (
            &["show", "1f1b", "-p", "2", "-m", "2", "--costs", "1,2"],
            "--costs",
        ),
        (
            &["show", "1f1b", "-p", "2", "-m", "2", "--costs", "1,-1,1"],
            "--costs",
        ),
        (
            &["show", "1f1b", "-p", "2", "-m", "2", "--svg", "no/x.svg"],
            "no/x.svg",
        ),
        (&["hide"], "hide"),
    ] {
        let output = schedule(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let error = String::from_utf8(output.stderr).expect("text");
        assert!(error.contains(words), "{arguments:?}: {error}");
        assert_eq!(error.trim().lines().count(), 1, "{error}");
        assert!(files(folder.path()).is_empty(), "{arguments:?}");
    }
}
