use super::*;
use crate::flight::FlightReason;

fn log(rank: usize, world_size: usize, groups: &[(&str, &[usize])]) -> FlightLog {
    FlightLog {
        version: FlightLog::VERSION,
        rank,
        world_size,
        process: 1,
        written_us: 20_000_000,
        reasons: vec![FlightReason {
            at_us: 20_000_000,
            text: "it failed".into(),
            asked: false,
        }],
        forgotten: 0,
        groups: groups
            .iter()
            .enumerate()
            .map(|(id, (name, ranks))| FlightGroup {
                id: id as u64,
                name: name.to_string(),
                ranks: ranks.to_vec(),
                generation: 0,
            })
            .collect(),
        entries: Vec::new(),
    }
}

fn with(
    mut log: FlightLog,
    group: u64,
    sequence: u64,
    operation: &str,
    state: FlightState,
) -> FlightLog {
    let number = log.entries.len() as u64;
    let ended_us = (state != FlightState::Running).then_some(12_000_000);
    log.entries.push(FlightEntry {
        number,
        group,
        sequence: Some(sequence),
        operation: operation.into(),
        partners: Vec::new(),
        dtype: "f32".into(),
        shape: vec![4],
        site: format!("train.rs:{}", 10 + sequence),
        state,
        queued_us: 10_000_000,
        began_us: Some(10_000_000),
        ended_us,
    });
    log
}

use FlightState::{Done, Failed, Running};

#[test]
fn a_late_rank_is_named_with_its_last_call() {
    let all: &[(&str, &[usize])] = &[("world", &[0, 1, 2])];
    let waits = |rank| {
        let log = with(log(rank, 3, all), 0, 4, "barrier", Done);
        with(log, 0, 5, "all_reduce(sum)", Failed)
    };
    let late = with(log(1, 3, all), 0, 4, "barrier", Done);
    let found = Diagnosis::of(&[waits(0), late, waits(2)]);
    assert_eq!(
        (found.culprits.as_slice(), found.missing.len()),
        (&[1][..], 0)
    );
    let text = found.to_string();
    for words in [
        "rank 0 waits for [1] in group world, call 5, all_reduce(sum) f32 [4], from train.rs:15",
        "=> rank 1 is behind: in the program itself, 8.000 s after its last, call 4, barrier",
        "rank 2: in call 5, all_reduce(sum) f32 [4], from train.rs:15, failed after 2.000 s",
        "rank 1: in no call since 8.000 s; its last was call 4",
    ] {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
}

#[test]
fn a_rank_without_a_recording_is_behind() {
    let all: &[(&str, &[usize])] = &[("world", &[0, 1])];
    let found = Diagnosis::of(&[with(log(0, 2, all), 0, 0, "barrier", Running)]);
    assert_eq!((found.missing, found.culprits), (vec![1], vec![1]));
    let text = found.report;
    assert!(
        text.contains("=> rank 1 is behind and left no recording"),
        "{text}"
    );
    assert!(text.contains("for 10.000 s so far"), "{text}");
}

#[test]
fn calls_that_differ_are_put_side_by_side() {
    let all: &[(&str, &[usize])] = &[("world", &[0, 1])];
    let found = Diagnosis::of(&[
        with(log(0, 2, all), 0, 3, "all_reduce(sum)", Failed),
        with(log(1, 2, all), 0, 3, "all_gather", Failed),
    ]);
    assert!(found.culprits.is_empty());
    let text = found.to_string();
    let words = "ranks 0 and 1 differ: call 3, all_reduce(sum) f32 [4], from train.rs:13 against call 3, all_gather";
    assert!(text.contains(words), "{text}");
    assert!(text.contains("nobody waits"), "{text}");
}

#[test]
fn groups_used_in_different_orders_are_a_circle() {
    let both: &[(&str, &[usize])] = &[("a", &[0, 1]), ("b", &[0, 1])];
    let found = Diagnosis::of(&[
        with(log(0, 2, both), 0, 0, "barrier", Running),
        with(log(1, 2, both), 1, 0, "barrier", Running),
    ]);
    assert_eq!(found.circle, [0, 1]);
    assert!(found.culprits.is_empty());
    assert!(
        found
            .to_string()
            .contains("wait for each other in a circle")
    );
}

#[test]
fn one_that_waits_for_a_late_rank_through_another_group_is_no_culprit() {
    // 0 waits for 1 in a; 1 waits for 2 in b; 2 computes.
    let groups: [&[(&str, &[usize])]; 3] = [
        &[("a", &[0, 1])],
        &[("a", &[0, 1]), ("b", &[1, 2])],
        &[("b", &[1, 2])],
    ];
    let found = Diagnosis::of(&[
        with(log(0, 3, groups[0]), 0, 6, "barrier", Running),
        with(log(1, 3, groups[1]), 1, 2, "barrier", Running),
        with(log(2, 3, groups[2]), 0, 1, "barrier", Done),
    ]);
    assert_eq!(found.culprits, [2]);
}

#[test]
fn partners_are_found_by_their_indices() {
    let all: &[(&str, &[usize])] = &[("pp", &[4, 7])];
    let mut sender = with(log(4, 8, all), 0, 2, "send(to 1)", Running);
    sender.entries[0].partners = vec![1];
    let found = Diagnosis::of(&[sender, log(7, 8, all)]);
    assert_eq!(found.culprits, [7]);
    let text = found.to_string();
    assert!(text.contains("it has made no call"), "{text}");
}
