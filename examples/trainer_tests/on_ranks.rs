//! The same trainers on many ranks: a small difference in the program, none in the numbers.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::run::run;
use crate::trainer::{Trainer, logs};
use crate::{DIGITS, DIGITS_WITHOUT_NORM, SERIES, TEXT};

const fn on_ranks(trainer: Trainer, program: &'static str) -> Trainer {
    Trainer { program, ..trainer }
}

const PAIRS: [(Trainer, Trainer, &str); 3] = [
    (
        DIGITS_WITHOUT_NORM,
        on_ranks(DIGITS_WITHOUT_NORM, env!("CARGO_BIN_EXE_digits_on_ranks")),
        "digits",
    ),
    (
        TEXT,
        on_ranks(TEXT, env!("CARGO_BIN_EXE_text_classification_on_ranks")),
        "text_classification",
    ),
    (
        SERIES,
        on_ranks(SERIES, env!("CARGO_BIN_EXE_lstm_series_on_ranks")),
        "lstm_series",
    ),
];

/// Lines of `text` that count: no imports, no blank ones.
fn lines(text: &str) -> Vec<&str> {
    let mut import = false;
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .filter(|line| {
            import |= line.starts_with("use ");
            let counts = !import;
            import &= !line.ends_with(';');
            counts
        })
        .collect()
}

#[test]
fn a_trainer_changes_by_three_lines_at_most() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (_, _, name) in PAIRS {
        let read = |name: String| fs::read_to_string(folder.join(name)).expect("a program");
        let (plain, ranks) = (
            read(format!("{name}.rs")),
            read(format!("{name}_on_ranks.rs")),
        );
        let mut added = lines(&ranks);
        for line in lines(&plain) {
            let place = added.iter().position(|other| *other == line);
            let place = place.unwrap_or_else(|| panic!("{name} lost {line:?}"));
            added.remove(place);
        }
        assert!(added.len() <= 3, "{name}: {added:#?}");
        let says = |words| added.iter().any(|line| line.contains(words));
        assert!(says("with_training_strategy"), "{name}: {added:#?}");
    }
}

/// Sums over ranks are Burn's own accumulation, so that every logged loss has the same bits.
#[test]
fn ranks_have_the_losses_of_one_device_that_accumulates() {
    for (plain, ranks, _) in PAIRS {
        let [one, many] = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
        let short = ["--epochs", "2", "--dropout", "0"];
        let short = match plain.program == TEXT.program {
            true => &short[..],
            false => &short[..2],
        };
        plain.train(&[short, &["--accumulate", "4"]].concat(), one.path());
        ranks.train(&[short, &["--ranks", "4", "--sum"]].concat(), many.path());
        assert_eq!(logs(one.path(), 2), logs(many.path(), 2), "{plain:?}");
    }
}

/// However much the ranks share.
#[test]
fn all_stages_of_zero_have_the_losses_of_one_device_that_accumulates() {
    for (plain, ranks, _) in PAIRS {
        let short = ["--epochs", "1", "--dropout", "0"];
        let short = match plain.program == TEXT.program {
            true => &short[..],
            false => &short[..2],
        };
        let one = tempfile::tempdir().expect("a temporary folder");
        plain.train(&[short, &["--accumulate", "2"]].concat(), one.path());
        for stage in ["1", "2", "3"] {
            let many = tempfile::tempdir().expect("a temporary folder");
            let sharded = ["--ranks", "2", "--sum", "--zero", stage];
            ranks.train(&[short, &sharded].concat(), many.path());
            let (one, many) = (logs(one.path(), 1), logs(many.path(), 1));
            assert_eq!(one, many, "{plain:?} in stage {stage}");
        }
    }
}

#[test]
fn one_and_four_ranks_are_equally_good() {
    for (plain, ranks, _) in &PAIRS {
        let [one, many] = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
        let one = plain.train(&[], one.path());
        let many = ranks.train(&["--ranks", "4", "--batch", "8"], many.path());
        assert!((plain.learned)(many.1), "{}: {}", one.0, many.0);
        assert!(
            (one.1 - many.1).abs() <= 0.03 * one.1.max(1.0),
            "{} {}",
            one.0,
            many.0
        );
    }
    // Each rank's own statistics in its norms: other numbers, as good.
    let digits = on_ranks(DIGITS, env!("CARGO_BIN_EXE_digits_on_ranks"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let many = digits.train(&["--ranks", "4", "--batch", "8"], folder.path());
    assert!((digits.learned)(many.1), "{}", many.0);
}

/// The losses of each step of the first epoch; those of the ranks' batches as one.
fn steps(artifacts: &Path, ranks: usize) -> Vec<f64> {
    let (_, lines) = &logs(artifacts, 1)[0];
    let losses: Vec<f64> = lines
        .iter()
        .filter(|line| !line.ends_with("final"))
        .map(|line| {
            let (loss, _) = line.split_once(',').expect("loss and count");
            loss.parse().expect("a number")
        })
        .collect();
    let steps = losses.chunks_exact(ranks);
    steps
        .map(|step| step.iter().sum::<f64>() / ranks as f64)
        .collect()
}

/// The first steps: later ones show how Adam turns the rounding of gradients that are zero, as those of a bias
/// before a normalization, into steps of full length.
#[test]
fn norms_over_ranks_are_those_of_one_device_with_the_whole_batch() {
    const STEPS: usize = 12;
    let one = tempfile::tempdir().expect("a temporary folder");
    let digits = Trainer {
        arguments: &["--epochs", "1"],
        ..DIGITS
    };
    digits.train(&["--batch", "32"], one.path());
    let one = steps(one.path(), 1);
    let digits = on_ranks(digits, env!("CARGO_BIN_EXE_digits_on_ranks"));
    let off = |norm: &str| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let more = ["--norm", norm, "--ranks", "4", "--batch", "8"];
        digits.train(&more, folder.path());
        let many = steps(folder.path(), 4);
        assert_eq!(one.len(), many.len());
        let pairs = one.iter().zip(&many).take(STEPS);
        pairs.map(|(a, b)| (a / b - 1.0).abs()).fold(0.0, f64::max)
    };
    let (together, apart) = (off("sync"), off("batch"));
    assert!(together < 1e-5, "{together}");
    assert!(apart > 1e-3, "{apart}");
}

/// What torchrun tells a rank of two.
pub(crate) fn variables<'a>(rank: &'a str, port: &'a str) -> [(&'static str, &'a str); 7] {
    [
        ("RANK", rank),
        ("LOCAL_RANK", rank),
        ("WORLD_SIZE", "2"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", port),
        ("RAYON_NUM_THREADS", "1"),
    ]
}

pub(crate) fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    address.port().to_string()
}

/// As torchrun starts them: each process runs the whole program, the first writes. Each measures its own model, of
/// which the BatchNorm's statistics are a part.
#[test]
fn processes_of_a_launcher_train_together() {
    for stage in ["0", "1", "3"] {
        processes_train_together(stage);
    }
}

fn processes_train_together(stage: &str) {
    let port = free_port();
    let digits = on_ranks(DIGITS, env!("CARGO_BIN_EXE_digits_on_ranks"));
    let digits = &digits;
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
    let results: Vec<_> = std::thread::scope(|scope| {
        let ranks = folders.iter().enumerate().map(|(rank, folder)| {
            let (port, rank) = (port.as_str(), rank.to_string());
            scope.spawn(move || {
                let variables = variables(&rank, port);
                let folder = folder.path().to_str().expect("plain letters");
                let arguments = ["--batch", "16", "--zero", stage, "--artifacts", folder];
                digits.result_of(&arguments, &variables)
            })
        });
        let ranks: Vec<_> = ranks.collect();
        let results = ranks.into_iter().map(|rank| rank.join().expect("no panic"));
        results.collect()
    });
    assert_eq!(results[0], results[1], "one model on both");
    assert!((digits.learned)(results[0].1), "{}", results[0].0);
    assert_eq!(logs(folders[0].path(), 3).len(), 6);
    for name in ["train", "valid"] {
        assert!(!folders[1].path().join(name).exists(), "logs of rank 1");
    }
    let checkpoints = fs::read_dir(folders[1].path().join("checkpoint"));
    let kept = checkpoints.map_or(0, |files| files.count());
    assert_eq!(kept, 0, "checkpoints of rank 1");
}

/// Without a launcher that would notice: the rank that is left says who is gone, and ends.
#[test]
fn a_killed_rank_ends_the_other_with_the_cause() {
    let port = free_port();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let artifacts = folder.path().join("first");
    let program = env!("CARGO_BIN_EXE_digits_on_ranks");
    let long = ["--epochs", "100000", "--batch", "16", "--artifacts"];
    let mut killed = Command::new(program)
        .args(long)
        .arg(folder.path().join("second"))
        .envs(variables("1", &port))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let (code, _, error) = std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let artifacts = artifacts.to_str().expect("plain letters");
            let arguments = [&long[..], &[artifacts]].concat();
            run(program, &arguments, &variables("0", &port), folder.path())
        });
        let trains = artifacts.join("train/epoch-1/Loss.log");
        while !trains.exists() && !first.is_finished() {
            std::thread::sleep(Duration::from_millis(10));
        }
        killed.kill().expect("it runs");
        killed.wait().expect("our child");
        first.join().expect("it ends in time")
    });
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("training ended: "), "{error}");
    assert!(error.contains("lost rank(s) [1]"), "{error}");
}
