//! However one rank's training ends, all end, with the cause.

use std::time::Duration;

use burn_dist::WorldOptions;
use burn_dist::train::{BatchSplit, Distributed, GradientReduction, LastRound};

use super::job::{Job, Net, train};
use super::{assert_same, on_ranks};

#[test]
fn a_panic_in_forward_ends_all_and_is_the_cause() {
    for ranks in [1, 2, 4] {
        let mut job = Job::new(24, 6, 2);
        job.panics_at = Some(5);
        let outcome = on_ranks(&job, || Distributed::new(ranks));
        let error = outcome.error.expect("a panic");
        assert!(error.contains("failed: rank "), "{error}");
        assert!(error.contains("it panicked: item 5 is too much"), "{error}");
        assert_eq!(error.matches("failed").count(), 2, "{error}");
        assert!(outcome.bits.iter().flatten().count() > 0);
    }
}

/// Nobody can stop a thread, but the program goes on without it.
#[test]
fn a_rank_that_hangs_in_forward_is_named_and_left_behind() {
    let options = WorldOptions {
        step_timeout: Duration::from_secs(1),
        ..WorldOptions::default()
    };
    let mut hung = [false; 2];
    for item in [0, 1, 2, 3] {
        let mut job = Job::new(24, 6, 2);
        job.hangs_at = Some(item);
        let outcome = on_ranks(&job, || Distributed::new(2).world_options(options));
        let error = outcome.error.expect("a rank hangs");
        let rank = (0..2).find(|rank| {
            error.contains(&format!("since then rank(s) [{rank}] did not end for 1s"))
        });
        let rank = rank.unwrap_or_else(|| panic!("{error}"));
        let other = 1 - rank;
        assert!(
            error.contains(&format!("worker on device {other} failed: rank {other}")),
            "{error}"
        );
        assert!(outcome.bits.iter().flatten().count() > 0);
        hung[rank] = true;
    }
    assert_eq!(hung, [true; 2], "these items are read by both ranks");
}

#[test]
fn an_unreadable_item_ends_all_as_on_one_device() {
    let mut job = Job::new(24, 6, 2);
    job.train.unreadable = Some(13);
    let one = train(&job, None).error.expect("unreadable");
    for split in [BatchSplit::Batches, BatchSplit::Slices] {
        let many = on_ranks(&job, || Distributed::new(3).batch_split(split));
        let many = many.error.expect("unreadable");
        assert!(
            one.contains("item 13") && many.contains("item 13"),
            "{many}"
        );
    }
    job.train.unreadable = None;
    job.valid.unreadable = Some(3);
    let many = on_ranks(&job, || Distributed::new(2)).error;
    assert!(many.expect("unreadable").contains("item 3"));
}

#[test]
fn an_empty_dataset_is_an_error_and_an_empty_validation_is_none() {
    let outcome = on_ranks(&Job::new(0, 4, 2), || Distributed::new(2));
    let error = outcome.error.expect("nothing to train on");
    assert!(
        error.contains("the training dataset has no items"),
        "{error}"
    );
    let outcome = on_ranks(&Job::new(8, 0, 2), || Distributed::new(2));
    assert_eq!(outcome.error, None);
    assert_eq!(outcome.items("train", 2), Some(8));
}

#[test]
fn early_stopping_stops_all_ranks_with_the_epoch_of_one_device() {
    let mut job = Job::new(24, 6, 2);
    (job.epochs, job.enough) = (5, Some(3));
    for ranks in [1, 3] {
        job.accumulation = Some(ranks);
        let one = train(&job, None);
        job.accumulation = None;
        let strategy = || Distributed::new(ranks).gradient_reduction(GradientReduction::Sum);
        let many = on_ranks(&job, strategy);
        assert_same(&one, &many, "stopped early");
        assert!(many.items("valid", 3).is_some() && many.items("train", 4).is_none());
    }
}

/// As `q` in the dashboard does.
#[test]
fn a_stop_on_one_rank_stops_all() {
    let mut job = Job::new(400, 10, 2);
    job.stop_after = Some(20);
    for ranks in [1, 3] {
        let outcome = on_ranks(&job, || Distributed::new(ranks));
        assert_eq!(outcome.error, None);
        assert_eq!(outcome.interrupted.as_deref(), Some("enough items"));
        let items = outcome.items("train", 1).expect("some");
        assert!((20..400).contains(&items), "{items}");
        assert_eq!(outcome.items("valid", 1), None);
    }
}

#[test]
fn wrong_settings_are_errors() {
    let job = Job::new(8, 4, 2);
    let error = on_ranks(&job, || Distributed::new(0)).error;
    assert!(error.expect("no ranks").contains("0 ranks"));
    let error = on_ranks(&job, || Distributed::new(2).clip_grad_norm(-1.0)).error;
    assert!(error.expect("a norm").contains("-1"));
}

/// A rank without a batch runs no forward pass, which layers that ask other ranks wait for.
#[test]
fn an_uneven_round_with_norms_over_ranks_ends_with_the_cause_or_is_filled_up() {
    let mut job = Job::new(22, 12, 4);
    job.batch_norm = true;
    let strategy = || Distributed::new(4).prepare(|net: Net, group| net.over(group));
    let outcome = on_ranks(&job, strategy);
    let error = outcome.error.expect("two ranks have no batch");
    assert!(error.contains("all_gather"), "{error}");
    for last_round in [LastRound::Repeat, LastRound::Drop] {
        let outcome = on_ranks(&job, || strategy().last_round(last_round));
        assert_eq!(outcome.error, None);
    }
}
