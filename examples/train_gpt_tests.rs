//! `train_gpt` as a user starts it: N ranks are one, bad input is one line, nothing is left behind.

#[path = "train_gpt_tests/harness.rs"]
mod harness;
#[path = "test_programs/run.rs"]
mod run;
#[path = "train_gpt_tests/stages.rs"]
mod stages;

use harness::{assert_close_numbers, assert_same_numbers, report, text, train_gpt};

#[test]
fn n_ranks_are_one_bit_for_bit() {
    for (ranks, micro) in [("2", "1"), ("3", "2"), ("4", "1")] {
        let micro_batches = ["--micro-batches", micro];
        let alone = ["--ranks", "1", "--as-ranks", ranks];
        let one = report(&[&alone[..], &micro_batches].concat(), &text());
        for how in [
            &[][..],
            &["--threads"],
            &["--no-overlap"],
            &["--bucket-bytes", "1000"],
            &["--no-shared-memory"],
            &["--algorithm", "centralized", "--threads"],
        ] {
            let together = [&["--ranks", ranks][..], &micro_batches, how].concat();
            let many = report(&together, &text());
            let what = format!("{together:?}");
            // The server moves other amounts; its formula is tested with the communicators.
            if how.contains(&"centralized") {
                assert_eq!(one["loss_bits"], many["loss_bits"], "{what}");
                continue;
            }
            assert_same_numbers(&one, &many, &what);
            assert_eq!(many["ranks"].to_string(), ranks);
            assert_eq!(many["losses"].as_array().map(Vec::len), Some(8));
            let memory = many["peak_rss_bytes"].as_array().expect("a list");
            assert_eq!(memory.len().to_string(), ranks);
        }
    }
}

#[test]
fn every_stage_is_one_rank_bit_for_bit() {
    for (ranks, micro) in [("2", "2"), ("3", "1")] {
        let steps = ["--micro-batches", micro, "--clip", "0.5"];
        let alone = [&["--as-ranks", ranks][..], &steps].concat();
        let one = report(&alone, &text());
        for zero in ["0", "1", "2", "3"] {
            for how in [&["--threads"][..], &["--recompute"]] {
                let run = [&["--ranks", ranks, "--zero", zero][..], &steps, how].concat();
                assert_same_numbers(&one, &report(&run, &text()), &format!("{run:?}"));
            }
        }
        let plain = [&["--ranks", ranks, "--no-overlap"][..], &steps].concat();
        assert_same_numbers(&one, &report(&plain, &text()), &format!("{plain:?}"));
    }
}

#[test]
fn kernels_have_the_bits_of_their_twins() {
    let steps = ["--ranks", "2", "--threads", "--clip", "0.5"];
    let twins = report(&[&steps[..], &["--twins"]].concat(), &text());
    for zero in ["0", "1", "2", "3"] {
        let run = [&steps[..], &["--zero", zero]].concat();
        assert_same_numbers(&twins, &report(&run, &text()), zero);
    }
}

/// What each of `ranks` ranks sends in a step of stage 3 with a unit per layer of three, counted by hand;
/// layers are gathered `times` times per micro-batch.
fn bytes_by_hand(ranks: u64, micro_batches: u64, seq: u64, times: u64) -> f64 {
    const LAYERS: u64 = 3;
    let (vocabulary, hidden) = (256, 64);
    let layer = 12 * hidden * hidden + 13 * hidden;
    // Positions are too small for a unit of their own and join the first layer. The backward
    // pass of an embedding does without its weights, and the last unit is still there.
    let units = [
        (vocabulary * hidden, 1),
        (seq * hidden + layer, times),
        (layer, times),
        (layer, times),
        (2 * hidden + hidden * vocabulary, 1),
    ];
    let bytes = units.map(|(elements, gathers)| {
        4 * elements.next_multiple_of(ranks) * (1 + gathers * micro_batches)
    });
    let flags = 2 * (2 + 16 * LAYERS + 3);
    ((bytes.iter().sum::<u64>() + flags) * (ranks - 1)) as f64 / ranks as f64
}

#[test]
fn stage_3_gathers_what_is_counted_by_hand() {
    let model = ["--layers", "3", "--hidden", "64", "--steps", "3"];
    // Where the rows of a sequence fill Burn's tiles, it keeps views of weights: nothing is gathered again.
    for (ranks, micro, seq, kept) in [
        ("2", "1", "24", 2),
        ("3", "2", "24", 2),
        ("2", "2", "32", 1),
    ] {
        let batch = ["--micro-batches", micro, "--seq", seq];
        let alone = [&model[..], &batch, &["--as-ranks", ranks]].concat();
        let one = report(&alone, &text());
        for (how, times) in [("--threads", kept), ("--recompute", 2)] {
            let stage = ["--ranks", ranks, "--zero", "3", how];
            let run = [&model[..], &batch, &stage].concat();
            let many = report(&run, &text());
            assert_same_numbers(&one, &many, &format!("{run:?}"));
            let number = |text: &str| text.parse().expect("a number");
            let by_hand = bytes_by_hand(number(ranks), number(micro), number(seq), times);
            let measured = many["bytes_per_step"]["measured"].as_f64();
            let measured = measured.expect("a number");
            // A mean over steps and ranks is rounded.
            assert!(
                (measured - by_hand).abs() < 1e-6,
                "{run:?}: {measured}, by hand {by_hand}"
            );
        }
    }
}

#[test]
fn replicas_of_shards_are_one_rank_bit_for_bit() {
    for (grouping, ranks, replicas) in [("2x2", "4", "2"), ("3x2", "6", "3")] {
        let one = report(&["--as-ranks", grouping, "--clip", "0.5"], &text());
        let run = [
            "--ranks",
            ranks,
            "--zero",
            "3",
            "--replicate",
            replicas,
            "--clip",
            "0.5",
        ];
        let many = report(&[&run[..], &["--threads"]].concat(), &text());
        assert_same_numbers(&one, &many, grouping);
    }
    let one = report(&["--as-ranks", "2x2", "--micro-batches", "3"], &text());
    let run = [
        "--ranks",
        "4",
        "--zero",
        "3",
        "--replicate",
        "2",
        "--micro-batches",
        "3",
    ];
    assert_same_numbers(&one, &report(&run, &text()), "processes");
}

#[test]
fn sixteen_bits_are_the_same_in_every_stage() {
    let one = report(&["--as-ranks", "2", "--dtype", "bf16"], &text());
    let full = report(&["--as-ranks", "2"], &text());
    assert_ne!(one["loss_bits"], full["loss_bits"]);
    for zero in ["0", "1", "2", "3"] {
        let run = [
            "--ranks",
            "2",
            "--zero",
            zero,
            "--dtype",
            "bf16",
            "--threads",
        ];
        assert_same_numbers(&one, &report(&run, &text()), zero);
    }
}

#[test]
fn the_loss_falls() {
    let report = report(&["--steps", "40", "--lr", "0.01"], &text());
    let losses: Vec<f64> = report["losses"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|loss| loss.as_f64().expect("a number"))
        .collect();
    assert!(losses[39] < 0.8 * losses[0], "{losses:?}");
}

#[test]
fn bad_input_is_one_line_and_code_2() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let empty = folder.path().join("empty");
    std::fs::write(&empty, "").expect("written");
    let empty = empty.to_str().expect("plain letters");
    let text = text();
    let text = text.to_str().expect("plain letters");
    let cases: [(&[&str], &str); 26] = [
        (&["--data", "/no/such/file"], "/no/such/file"),
        (&["--data", empty], "holds no text"),
        (
            &["--batch", "15"],
            "--batch 15 is not a multiple of 2 ranks",
        ),
        (&["--ranks", "0"], "--ranks is 0"),
        (&["--hidden", "30", "--heads", "4"], "--hidden 30"),
        (
            &["--ranks", "2", "--as-ranks", "2"],
            "--as-ranks goes with --ranks 1",
        ),
        (&["--lr", "nan"], "--lr NaN"),
        (&["--steps", "many"], "many"),
        (&["--bogus"], "--bogus"),
        (
            &["--json", "/no/such/folder/report.json"],
            "/no/such/folder",
        ),
        (&["--data", text, "--seq", "4000"], "a longer text"),
        (&["--algorithm", "gossip"], "gossip"),
        (&["--replicate", "2"], "--replicate 2 with --zero 0"),
        (
            &["--zero", "3", "--replicate", "3", "--ranks", "2"],
            "--replicate 3 does not divide",
        ),
        (&["--clip", "0"], "--clip 0 is not a positive number"),
        (&["--clip", "-1"], "--clip -1 is not a positive number"),
        (&["--clip", "inf"], "--clip inf is not a positive number"),
        (
            &["--ranks", "2", "--as-ranks", "1"],
            "--as-ranks goes with --ranks 1",
        ),
        (
            &["--as-ranks", "2", "--zero", "3"],
            "--zero 3 with --no-overlap or --as-ranks",
        ),
        (&["--dtype", "bf16", "--no-overlap"], "with --no-overlap"),
        (
            &["--dtype", "bf16", "--as-ranks", "2x2"],
            "--dtype bf16 with --as-ranks",
        ),
        (
            &["--dtype", "bf16", "--as-ranks", "2", "--micro-batches", "2"],
            "one micro-batch per rank",
        ),
        (
            &["--zero", "3", "--no-overlap"],
            "--zero 3 with --no-overlap",
        ),
        (&["--zero", "4"], "4"),
        (&["--dtype", "f8"], "f8"),
        (&["--ranks", "1", "--as-ranks", "2by2"], "2by2"),
    ];
    for (arguments, word) in cases {
        let (code, _, error) = train_gpt(arguments, &[]);
        assert_eq!(code, Some(2), "{arguments:?}: {error}");
        assert!(error.contains(word), "{arguments:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{arguments:?}: {error}");
    }
}

#[test]
fn a_device_that_is_not_there_is_one_line() {
    let cuda = match cfg!(feature = "cuda") {
        // With a driver or without one.
        true => "",
        false => "built without its feature `cuda`; build it with `cargo build",
    };
    let cpu = "built without its feature `cpu`; build it with `cargo build";
    let cases = [
        ("gpu", "neither flex, cpu, cuda nor cuda:N"),
        ("cuda:x", "neither flex, cpu, cuda nor cuda:N"),
        ("cuda:99", cuda),
        ("cpu", cpu),
    ];
    let cpu_is_there = cfg!(feature = "cpu");
    for (device, words) in cases
        .iter()
        .filter(|(name, _)| *name != "cpu" || !cpu_is_there)
    {
        let (code, _, error) = train_gpt(&["--device", device], &[]);
        assert_eq!(code, Some(2), "{device}: {error}");
        assert!(error.contains(words), "{device}: {error}");
        assert_eq!(error.trim().lines().count(), 1, "{device}: {error}");
    }
}

#[test]
fn a_world_that_does_not_fit_is_refused() {
    let (code, _, error) = train_gpt(&[], &[("RANK", "0"), ("WORLD_SIZE", "2")]);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("MASTER_ADDR is missing"), "{error}");
    let alone = [("RANK", "0"), ("WORLD_SIZE", "1")];
    let (code, _, error) = train_gpt(&["--ranks", "2"], &alone);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("a world of 1 ranks"), "{error}");
}

#[test]
fn split_layers_have_the_losses_of_one_rank_and_the_bytes_of_the_formula() {
    for (data, micro) in [("1", "1"), ("2", "2")] {
        let steps = ["--micro-batches", micro, "--clip", "0.5", "--heads", "4"];
        let one = report(
            &[&["--ranks", "1", "--as-ranks", data][..], &steps].concat(),
            &text(),
        );
        for tp in ["2", "4"] {
            for how in [
                &["--zero", "0"][..],
                &["--zero", "0", "--sequence-parallel", "--threads"],
                &["--zero", "1", "--sequence-parallel", "--recompute"],
                &["--zero", "3"],
                &[
                    "--zero",
                    "3",
                    "--sequence-parallel",
                    "--recompute",
                    "--threads",
                ],
            ] {
                let run = [&["--dp", data, "--tp", tp][..], &steps, how].concat();
                assert_close_numbers(&one, &report(&run, &text()), &format!("{run:?}"));
            }
        }
    }
}

#[test]
fn what_cannot_be_split_is_one_line() {
    for (arguments, words) in [
        (
            &["--ranks", "3", "--tp", "2"][..],
            "--tp 2 does not divide 3 ranks",
        ),
        (&["--tp", "3"], "does not divide --heads 4"),
        (
            &["--dp", "2", "--tp", "2", "--ranks", "2"],
            "--dp 2 x --tp 2 with 2 ranks",
        ),
        (&["--sequence-parallel"], "--tp 1"),
        (
            &["--tp", "4", "--sequence-parallel", "--seq", "30"],
            "does not divide --seq 30",
        ),
        (&["--tp", "0"], "--tp is 0"),
        (
            &["--dp", "4", "--tp", "2", "--batch", "6"],
            "4 ranks x 1 micro-batches",
        ),
    ] {
        let (code, _, error) = train_gpt(arguments, &[]);
        assert_eq!(code, Some(2), "{arguments:?}: {error}");
        assert!(error.contains(words), "{arguments:?}: {error}");
        assert_eq!(error.trim().lines().count(), 1, "{error}");
    }
}
