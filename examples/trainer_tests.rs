//! Burn trainers as a user starts them, plain and on many ranks: they learn, repeat themselves and leave nothing behind.

#[path = "trainer_tests/dashboard.rs"]
mod dashboard;
#[path = "trainer_tests/on_ranks.rs"]
mod on_ranks;
#[path = "test_programs/run.rs"]
mod run;
#[path = "test_programs/terminal.rs"]
mod terminal;
#[path = "trainer_tests/trainer.rs"]
mod trainer;

use std::fs;

use run::run;
use trainer::{Trainer, logs};

const DIGITS: Trainer = Trainer {
    program: env!("CARGO_BIN_EXE_digits"),
    arguments: &["--epochs", "3"],
    result: "validation accuracy: ",
    learned: |percent| percent > 95.0,
};

const DIGITS_WITHOUT_NORM: Trainer = Trainer {
    arguments: &["--epochs", "6", "--norm", "none"],
    ..DIGITS
};

const TEXT: Trainer = Trainer {
    program: env!("CARGO_BIN_EXE_text_classification"),
    arguments: &["--epochs", "5"],
    result: "validation accuracy: ",
    learned: |percent| percent > 85.0,
};

const SERIES: Trainer = Trainer {
    program: env!("CARGO_BIN_EXE_lstm_series"),
    arguments: &["--epochs", "5"],
    result: "validation error: ",
    // Repeating the last value is off by 0.46.
    learned: |error| error < 0.2,
};

/// Two runs print the same line and log the same losses, and the number is good.
fn learns_and_repeats(trainer: &Trainer, more: &[&str]) {
    let folders = [(), ()].map(|()| tempfile::tempdir().expect("a temporary folder"));
    let [first, second] = folders.each_ref().map(|folder| {
        let result = trainer.train(more, folder.path());
        (result, logs(folder.path(), 3))
    });
    assert!((trainer.learned)(first.0.1), "{}", first.0.0);
    assert_eq!(first, second, "{trainer:?}");
    let checkpoint = folders[0].path().join("checkpoint");
    let kept = fs::read_dir(&checkpoint).expect("checkpoints").count();
    assert!(kept >= 3, "{kept} files in {}", checkpoint.display());
    assert!(folders[0].path().join("experiment.log").is_file());
}

#[test]
fn digits_are_read() {
    learns_and_repeats(&DIGITS, &[]);
}

#[test]
fn digits_are_read_without_norms() {
    learns_and_repeats(&DIGITS_WITHOUT_NORM, &[]);
}

#[test]
fn languages_are_told_apart() {
    learns_and_repeats(&TEXT, &[]);
}

#[test]
fn languages_are_told_apart_with_dropout() {
    learns_and_repeats(&TEXT, &["--dropout", "0.1"]);
}

#[test]
fn a_folder_of_ones_own_is_read() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for number in 0..10 {
        for (extension, line) in [
            (
                "rs",
                format!("fn f{number}(x: u32) -> u32 {{ x + {number} }}\n"),
            ),
            ("md", format!("# Chapter {number}\n\nPlain words *here*.\n")),
            ("toml", format!("[part-{number}]\nkey = \"{number}\"\n")),
        ] {
            let file = folder.path().join(format!("{number}.{extension}"));
            fs::write(file, line.repeat(20)).expect("written");
        }
    }
    let folder = folder.path().to_str().expect("plain letters");
    let (line, percent) = TEXT.result_of(&["--data", folder, "--lr", "0.01"], &[]);
    assert!(percent > 99.0, "{line}");
    // Two of ten files of each language validate, with 16 snippets at most.
    let items = line.split(" of ").nth(1);
    let items = items.and_then(|rest| rest.trim_end_matches(')').parse::<usize>().ok());
    assert!(items.is_some_and(|items| items <= 96), "{line}");
}

#[test]
fn a_series_is_forecast() {
    learns_and_repeats(&SERIES, &[]);
}

#[test]
fn a_series_is_forecast_better_than_by_its_last_value() {
    let (line, error) = SERIES.result_of(&[], &[]);
    let repeated = line
        .split("last value: ")
        .nth(1)
        .and_then(|rest| rest.trim_end_matches(')').parse::<f64>().ok())
        .expect("the error of repeating");
    assert!(2.0 * error < repeated, "{line}");
}

#[test]
fn a_seed_changes_everything_that_is_drawn() {
    for trainer in [&DIGITS, &SERIES] {
        let [first, other] = ["1", "2"].map(|seed| {
            let folder = tempfile::tempdir().expect("a temporary folder");
            trainer.train(&["--seed", seed, "--epochs", "1"], folder.path());
            logs(folder.path(), 1)
        });
        for ((name, one), (_, two)) in first.iter().zip(&other) {
            assert_ne!(one[0], two[0], "{name} of {trainer:?}");
        }
    }
}

#[test]
fn accumulated_batches_make_one_step() {
    for trainer in [&DIGITS_WITHOUT_NORM, &SERIES] {
        let [each, fourth] = ["1", "4"].map(|batches| {
            let folder = tempfile::tempdir().expect("a temporary folder");
            trainer.train(&["--accumulate", batches, "--epochs", "1"], folder.path());
            logs(folder.path(), 1).swap_remove(0).1
        });
        assert_eq!(each.len(), fourth.len(), "{trainer:?}");
        assert_eq!(
            each[0], fourth[0],
            "the parameters of the start, {trainer:?}"
        );
        assert_ne!(each[1], fourth[1], "after a step of the one, {trainer:?}");
    }
}

#[test]
fn a_temporary_folder_goes_with_the_run() {
    for trainer in [&DIGITS, &SERIES] {
        let temporary = tempfile::tempdir().expect("a temporary folder");
        let path = temporary.path().to_str().expect("plain letters");
        trainer.result_of(&["--epochs", "1"], &[("TMPDIR", path)]);
        let left: Vec<_> = fs::read_dir(path).expect("a folder").collect();
        assert!(left.is_empty(), "{trainer:?} left {left:?}");
    }
}

#[test]
fn bad_input_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("file");
    fs::write(&file, "").expect("written");
    let file = file.to_str().expect("plain letters");
    let empty = tempfile::tempdir().expect("a temporary folder");
    let empty = empty.path().to_str().expect("plain letters");
    let cases: [(&Trainer, &[&str], &str); 9] = [
        (&DIGITS, &["--batch", "0"], "--batch"),
        (&DIGITS, &["--epochs", "0"], "--epochs"),
        (&DIGITS, &["--accumulate", "0"], "--accumulate"),
        (&DIGITS, &["--norm", "layer"], "--norm"),
        (&DIGITS, &["--artifacts", file], file),
        (&SERIES, &["--lr", "nan"], "not a positive number"),
        (&TEXT, &["--dropout", "1"], "not from 0 to below 1"),
        (&TEXT, &["--data", "no/such/folder"], "no/such/folder: "),
        (&TEXT, &["--data", empty], "too few files of Rust"),
    ];
    for (trainer, arguments, words) in cases {
        let (code, out, error) = run(trainer.program, arguments, &[], folder.path());
        assert!(code.is_some_and(|code| code != 0), "{arguments:?}: {out}");
        assert!(error.contains(words), "{arguments:?}: {error}");
    }
}
