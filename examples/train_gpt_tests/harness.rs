//! Runs `train_gpt` as a user does.

use std::path::Path;

use crate::run::run;

/// Code, standard output, error stream.
pub(crate) fn train_gpt(
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> (Option<i32>, String, String) {
    let program = env!("CARGO_BIN_EXE_train_gpt");
    run(program, arguments, variables, &std::env::temp_dir())
}

/// A small model on a small text, and the run's JSON.
pub(crate) fn report(arguments: &[&str], text: &Path) -> serde_json::Value {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let json = folder.path().join("report.json");
    let json = json.to_str().expect("plain letters");
    let data = text.to_str().expect("plain letters");
    let small = [
        "--data", data, "--json", json, "--layers", "1", "--hidden", "32", "--heads", "2", "--seq",
        "24", "--batch", "12", "--steps", "8",
    ];
    let (code, _, error) = train_gpt(&[&small, arguments].concat(), &[]);
    assert_eq!(code, Some(0), "{arguments:?}: {error}");
    let text = std::fs::read_to_string(json).expect("written");
    serde_json::from_str(&text).expect("JSON")
}

/// This file, as a text to learn.
pub(crate) fn text() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("train_gpt_tests.rs")
}

pub(crate) fn assert_same_numbers(one: &serde_json::Value, many: &serde_json::Value, what: &str) {
    assert_eq!(one["loss_bits"], many["loss_bits"], "{what}");
    assert_eq!(one["parameter_hash"], many["parameter_hash"], "{what}");
    let bytes = &many["bytes_per_step"];
    assert_eq!(bytes["measured"], bytes["formula"], "{what}");
}

/// The losses within the bound of layers that add in another order, and the bytes of the formula.
pub(crate) fn assert_close_numbers(one: &serde_json::Value, many: &serde_json::Value, what: &str) {
    let losses = |report: &serde_json::Value| -> Vec<f64> {
        let losses = report["losses"].as_array().expect("a list").iter();
        let numbers = losses.map(|loss| loss.as_f64().expect("a number"));
        numbers.collect()
    };
    let (got, expected) = (losses(many), losses(one));
    assert_eq!(got.len(), expected.len(), "{what}");
    for (got, expected) in got.iter().zip(expected) {
        let error = (got - expected).abs();
        assert!(error <= 1e-5 * expected, "{what}: {got} {expected}");
    }
    let bytes = &many["bytes_per_step"];
    assert_eq!(bytes["measured"], bytes["formula"], "{what}");
}
