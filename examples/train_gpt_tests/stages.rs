//! `train_gpt` in stages: the numbers of one rank with every schedule, and bad input in one line.

use super::harness::{assert_close_numbers, assert_same_numbers, report, text, train_gpt};

const SCHEDULES: [&str; 4] = ["gpipe", "1f1b", "interleaved:2", "zb-h1"];

#[test]
fn fifty_steps_in_stages_are_one_rank_bit_for_bit() {
    let job = ["--layers", "6", "--batch", "8", "--micro-batches", "4"];
    let job = [&job[..], &["--steps", "50"]].concat();
    let one = report(
        &[&job[..], &["--ranks", "1", "--as-ranks", "1"]].concat(),
        &text(),
    );
    assert_eq!(one["losses"].as_array().map(Vec::len), Some(50));
    for pp in ["1", "2", "4"] {
        for schedule in SCHEDULES {
            for how in [&["--threads"][..], &["--recompute"]] {
                let stages = ["--ranks", pp, "--pp", pp, "--schedule", schedule];
                let run = [&job[..], &stages, how].concat();
                assert_same_numbers(&one, &report(&run, &text()), &format!("{run:?}"));
            }
        }
    }
}

#[test]
fn a_schedule_of_ones_own_comes_from_a_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("own.txt");
    // Two micro-batches ahead, where one is enough.
    let ahead = "rank 0: 0F0 0F1 0F2 0B0 0B1 0B2\nrank 1: 1F0 1F1 1B1 1B0 1F2 1B2\n";
    // Two stages in a row on the second rank.
    let neighbours = "0F0 0F1 0F2 0B0 0B1 0B2\n1F0 2F0 2B0 1B0 1F1 2F1 2B1 1B1 1F2 2F2 2B2 1B2\n";
    let file = path.to_str().expect("plain letters");
    let job = ["--micro-batches", "3", "--clip", "0.5"];
    let one = report(
        &[&job[..], &["--ranks", "1", "--as-ranks", "1"]].concat(),
        &text(),
    );
    for plan in [ahead, neighbours] {
        std::fs::write(&path, plan).expect("written");
        let run = [&job[..], &["--pp", "2", "--schedule", file]].concat();
        assert_same_numbers(&one, &report(&run, &text()), plan);
    }
}

#[test]
fn replicas_of_stages_are_one_rank_bit_for_bit() {
    let job = ["--micro-batches", "3", "--clip", "0.5", "--layers", "2"];
    let one = report(&[&job[..], &["--as-ranks", "2"]].concat(), &text());
    for schedule in SCHEDULES {
        // Rounds of interleaved schedules are of as many micro-batches as ranks.
        if schedule.starts_with("interleaved") {
            continue;
        }
        for zero in ["0", "1", "2"] {
            let stages = ["--dp", "2", "--pp", "2", "--schedule", schedule];
            let run = [&job[..], &stages, &["--zero", zero]].concat();
            assert_same_numbers(&one, &report(&run, &text()), &format!("{run:?}"));
        }
    }
}

#[test]
fn replicas_of_stages_of_split_layers_have_the_losses_of_one_rank() {
    let job = ["--micro-batches", "2", "--clip", "0.5", "--layers", "2"];
    let job = [&job[..], &["--heads", "4"]].concat();
    let one = report(&[&job[..], &["--as-ranks", "2"]].concat(), &text());
    for how in [
        &["--schedule", "gpipe"][..],
        &["--schedule", "1f1b", "--zero", "1", "--threads"],
        &["--schedule", "zb-h1", "--sequence-parallel"],
        &["--schedule", "interleaved:2", "--recompute"],
        &["--sequence-parallel", "--recompute", "--zero", "1"],
    ] {
        let run = [&job[..], &["--dp", "2", "--tp", "2", "--pp", "2"], how].concat();
        assert_close_numbers(&one, &report(&run, &text()), &format!("{run:?}"));
    }
}

#[test]
fn the_last_steps_are_traced() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path().join("new").join("trace");
    let path = folder.to_str().expect("plain letters");
    let run = ["--dp", "2", "--pp", "2", "--micro-batches", "3"];
    report(
        &[&run[..], &["--layers", "2", "--trace", path]].concat(),
        &text(),
    );
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("written");
    let trace: serde_json::Value = serde_json::from_str(&read("trace.json")).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("a list");
    for rank in 0..4 {
        let of_kind = |kind: &str| {
            let events = events.iter();
            let events = events.filter(|event| event["pid"] == rank && event["cat"] == kind);
            events.count()
        };
        let passes = |name: &str| {
            let own = events.iter().filter(|event| event["pid"] == rank);
            let names = own.filter_map(|event| event["name"].as_str());
            names.filter(|other| *other == name).count()
        };
        let stage = rank / 2;
        for micro_batch in 0..3 {
            for kind in ["F", "B"] {
                assert_eq!(passes(&format!("{stage}{kind}{micro_batch}")), 3, "3 steps");
            }
        }
        assert!(of_kind("call") > 0 && of_kind("idle") > 0);
    }
    // A box and its edge for each pass of the last step.
    assert!(read("step.svg").matches("<rect").count() > 2 * 4 * 6);
    let (code, _, error) = train_gpt(&["--trace", "/dev/null/trace"], &[]);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("cannot hold a trace"), "{error}");
}

#[test]
fn what_cannot_be_staged_is_one_line() {
    for (arguments, words) in [
        (
            &["--pp", "2", "--ranks", "3"][..],
            "--tp 1 x --pp 2 does not divide 3 ranks",
        ),
        (&["--pp", "0"], "--pp is 0"),
        (&["--pp", "7", "--layers", "2"], "7 stages for 2 layers"),
        (&["--pp", "2", "--zero", "3"], "--zero 3 with --pp 2"),
        (&["--pp", "2", "--dtype", "bf16"], "--dtype bf16"),
        (&["--pp", "2", "--no-overlap"], "--no-overlap"),
        (&["--pp", "2", "--schedule", "2f2b"], "2f2b"),
        (&["--pp", "2", "--schedule", "interleaved:0"], "interleaved"),
        (
            &[
                "--pp",
                "2",
                "--schedule",
                "interleaved:2",
                "--micro-batches",
                "3",
                "--batch",
                "6",
            ],
            "with 3 micro-batches on 2 ranks",
        ),
        (
            &["--pp", "2", "--batch", "6", "--micro-batches", "4"],
            "1 ranks x 4 micro-batches",
        ),
        (&["--pp", "2", "--ranks", "1"], "does not divide 1 ranks"),
    ] {
        let (code, _, error) = train_gpt(arguments, &[]);
        assert_eq!(code, Some(2), "{arguments:?}: {error}");
        assert!(error.contains(words), "{arguments:?}: {error}");
        assert_eq!(error.trim().lines().count(), 1, "{error}");
    }
}
