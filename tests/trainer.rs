//! Burn's own trainer on N ranks: the numbers of one, and one end for all.

#[path = "trainer/items.rs"]
mod items;

#[path = "trainer/job.rs"]
mod job;

#[path = "trainer/metrics.rs"]
mod metrics;

#[path = "trainer/ends.rs"]
mod ends;

#[path = "trainer/zero.rs"]
mod zero;

use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::Device;
use burn_dist::train::{BatchSplit, Distributed, GradientReduction, LastRound};
use burn_zero::Zero;
use job::{Job, Net, Outcome, train, train_with};
use tests::run_threads;

fn sum(ranks: usize) -> Distributed<Net> {
    Distributed::new(ranks).gradient_reduction(GradientReduction::Sum)
}

/// Runs with a deadline.
fn on_ranks(job: &Job, strategy: impl Fn() -> Distributed<Net> + Send + Sync) -> Outcome {
    let mut outcomes = run_threads(1, |_| train(job, Some(strategy().into())));
    outcomes.pop().expect("one")
}

#[track_caller]
fn assert_same(one: &Outcome, many: &Outcome, what: &str) {
    assert_eq!((&one.error, &many.error), (&None, &None), "{what}");
    for (one, many) in one.log.iter().zip(&many.log) {
        assert_eq!(one, many, "{what}");
    }
    assert_eq!(one.log.len(), many.log.len(), "{what}");
    assert_eq!(one.bits, many.bits, "{what}: parameters");
}

#[test]
fn ranks_are_one_device_that_accumulates_bit_for_bit() {
    for (items, batch) in [(48, 4), (22, 4), (7, 2)] {
        let mut job = Job::new(items, 22, batch);
        for ranks in [1, 2, 3, 4] {
            job.accumulation = Some(ranks);
            let one = train(&job, None);
            job.accumulation = None;
            let many = on_ranks(&job, || sum(ranks));
            assert_same(&one, &many, &format!("{items} items on {ranks} ranks"));
        }
    }
}

#[test]
fn activations_are_recomputed_where_the_model_says_so() {
    let mut job = Job::new(24, 6, 2);
    let right = train(&job, None);
    job.recompute = true;
    assert_same(&right, &train(&job, None), "one device");
    job.accumulation = None;
    let (device, other) = (Device::flex(), Device::flex().autodiff());
    for device in [device, other] {
        let strategy = || Distributed::new(1).device(device.clone());
        assert_same(&right, &on_ranks(&job, strategy), "one rank");
    }
    for zero in [false, true] {
        let strategy = || match zero {
            false => sum(2),
            true => sum(2).parallelism(Zero::stage3(AdamWConfig::new())),
        };
        job.recompute = false;
        let right = on_ranks(&job, strategy);
        job.recompute = true;
        assert_same(&right, &on_ranks(&job, strategy), "two ranks");
    }
}

#[test]
fn accumulation_on_ranks_is_more_accumulation_on_one() {
    let mut job = Job::new(48, 10, 2);
    for (ranks, accumulation) in [(2, 3), (3, 2), (2, 5), (4, 4)] {
        job.accumulation = Some(ranks * accumulation);
        let one = train(&job, None);
        job.accumulation = Some(accumulation);
        let many = on_ranks(&job, || sum(ranks));
        // Sums are grouped by rank, so bits differ; losses do not.
        assert_eq!(many.error, None);
        assert_eq!(one.log.len(), many.log.len());
        let worst = worst_difference(&one, &many);
        assert!(worst < 1e-5, "{ranks} ranks, {accumulation}: {worst}");
    }
}

/// Between the losses of two runs, relative.
fn worst_difference(one: &Outcome, many: &Outcome) -> f64 {
    let numbers = |outcome: &Outcome| -> Vec<f64> {
        let words = outcome.log.join(" ").replace([')', '(', ',', '}'], " ");
        words
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect()
    };
    let (one, many) = (numbers(one), numbers(many));
    assert!(!one.is_empty() && one.len() == many.len());
    let differences = one.iter().zip(&many);
    differences
        .map(|(a, b)| (a - b).abs() / a.abs().max(1e-3))
        .fold(0.0, f64::max)
}

/// SGD sees the size of a gradient: a mean over ranks is the gradient of the larger batch.
#[test]
fn a_mean_over_ranks_is_one_device_with_the_larger_batch() {
    let sgd = || SgdConfig::new().init();
    let one = train_with(&Job::new(48, 12, 12), sgd(), None);
    for ranks in [2, 3, 4] {
        let job = Job::new(48, 12, 12 / ranks);
        let strategy = || Distributed::new(ranks).into();
        let many = run_threads(1, |_| train_with(&job, sgd(), Some(strategy())));
        let (a, b) = (one.values(), many[0].values());
        let worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs());
        let worst = worst.fold(0.0, f32::max);
        assert!(worst < 1e-5, "{ranks} ranks: {worst}");
    }
}

#[test]
fn every_item_is_counted_once() {
    for (items, ranks) in [(22, 3), (1, 4), (2, 3), (5, 2), (16, 4)] {
        for split in [BatchSplit::Batches, BatchSplit::Slices] {
            for workers in [0, 2] {
                let mut job = Job::new(items, items, 2);
                job.workers = workers;
                let many = on_ranks(&job, || Distributed::new(ranks).batch_split(split));
                assert_eq!(many.error, None);
                for part in ["train", "valid"] {
                    for epoch in [1, 2] {
                        let what = format!("{items} items, {ranks} ranks, {split:?}, {workers}");
                        assert_eq!(many.items(part, epoch), Some(items), "{what}: {part}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_last_round_is_left_out_or_filled_up() {
    let job = Job::new(22, 22, 4);
    let dropped = on_ranks(&job, || Distributed::new(4).last_round(LastRound::Drop));
    assert_eq!(dropped.items("train", 1), Some(16));
    assert_eq!(dropped.items("valid", 1), Some(22));
    let repeated = on_ranks(&job, || Distributed::new(4).last_round(LastRound::Repeat));
    assert_eq!(repeated.items("train", 1), Some(22));
    assert_ne!(dropped.bits, repeated.bits);
    let without = on_ranks(&job, || Distributed::new(4));
    assert_ne!(without.bits, repeated.bits);
}

#[test]
fn learning_rates_step_as_on_one_device() {
    let mut job = Job::new(30, 6, 3);
    job.decay = true;
    for ranks in [2, 4] {
        job.accumulation = Some(ranks);
        let one = train(&job, None);
        job.accumulation = None;
        assert_same(&one, &on_ranks(&job, || sum(ranks)), "decay");
    }
}

#[test]
fn clipping_is_over_all_parameters_and_the_same_on_any_number_of_ranks() {
    let mut job = Job::new(24, 6, 3);
    job.accumulation = Some(4);
    let one = on_ranks(&job, || sum(1).clip_grad_norm(0.01));
    let free = on_ranks(&job, || sum(1));
    assert_ne!(one.bits, free.bits);
    job.accumulation = None;
    let many = on_ranks(&job, || sum(4).clip_grad_norm(0.01));
    assert_same(&one, &many, "clipped");
}

/// Burn's trainer and the strategy on one rank: running statistics and what is validated with them too.
#[test]
fn one_rank_with_batch_norm_is_burn_s_trainer() {
    let mut job = Job::new(24, 12, 3);
    job.batch_norm = true;
    for accumulation in [None, Some(3)] {
        job.accumulation = accumulation;
        assert_same(&train(&job, None), &on_ranks(&job, || sum(1)), "one rank");
    }
}

/// With one `BatchNorm` over all ranks, splitting a batch changes nothing but rounding.
#[test]
fn ranks_that_normalize_together_are_one_device_with_the_larger_batch() {
    let sgd = || SgdConfig::new().init();
    let mut job = Job::new(48, 12, 12);
    job.batch_norm = true;
    let one = train_with(&job, sgd(), None);
    for ranks in [2, 3, 4] {
        job.batch = 12 / ranks;
        let strategy = || Distributed::new(ranks).prepare(|net: Net, group| net.over(group));
        let together = run_threads(1, |_| train_with(&job, sgd(), Some(strategy().into())));
        let apart = || Distributed::new(ranks).into();
        let apart = run_threads(1, |_| train_with(&job, sgd(), Some(apart())));
        assert_eq!((&together[0].error, &apart[0].error), (&None, &None));
        let off = |many: &Outcome| {
            let pairs = one.values().into_iter().zip(many.values());
            pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
        };
        let (together, apart) = (off(&together[0]), off(&apart[0]));
        assert!(together < 1e-5, "{ranks} ranks: {together}");
        assert!(apart > 1e-4, "{ranks} ranks each on their own: {apart}");
    }
}

#[test]
fn running_statistics_are_those_of_the_first_rank() {
    let mut job = Job::new(24, 12, 3);
    job.batch_norm = true;
    let many = on_ranks(&job, || sum(3));
    let again = on_ranks(&job, || sum(3));
    assert_same(&many, &again, "repeated");
    // What the first of three ranks saw is not what one device saw.
    job.accumulation = Some(3);
    assert_ne!(train(&job, None).bits, many.bits);
}

#[test]
fn checkpoints_go_to_one_device_and_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let in_folder = |name: &str, epochs, resume, accumulation| {
        let mut job = Job::new(24, 8, 3).accumulating(accumulation);
        job.batch_norm = true;
        job.with_checkpoints(&folder.path().join(name), epochs, resume)
    };
    // Statistics of BatchNorm differ between one rank and many; so both halves run on as many.
    let whole = on_ranks(&in_folder("whole", 3, None, None), || sum(2));
    on_ranks(&in_folder("parts", 2, None, None), || sum(2));
    let resumed = on_ranks(&in_folder("parts", 3, Some(2), None), || sum(2));
    assert_eq!(resumed.error, None);
    let of_third = |outcome: &Outcome| -> Vec<String> {
        let lines = outcome.log.iter().filter(|line| line.contains(" 3: "));
        lines.cloned().collect()
    };
    assert!(!of_third(&resumed).is_empty());
    // Burn's checkpoints hold no position of the loader's random numbers: the order of epoch 3 is that of
    // epoch 1, so only what does not depend on the order can be compared with the whole run.
    assert_eq!(of_third(&whole).len(), of_third(&resumed).len());
    let plain = train(&in_folder("parts", 3, Some(2), Some(2)), None);
    assert_eq!(plain.error, None);
    let with_norm = worst_difference(&plain, &resumed);
    assert!(with_norm < 0.5, "{with_norm}");
    let back = on_ranks(&in_folder("parts", 4, Some(3), None), || sum(2));
    assert_eq!(back.error, None);
    assert_eq!(back.items("train", 4), Some(24));
}

/// Without BatchNorm a checkpoint of two ranks resumes on one device, to the bits of two.
#[test]
fn a_checkpoint_resumes_to_the_same_bits_on_one_device_and_on_ranks() {
    let folder = tempfile::tempdir().expect("a folder");
    let job = |name: &str, epochs, resume, accumulation| {
        let job = Job::new(24, 8, 3).accumulating(accumulation);
        job.with_checkpoints(&folder.path().join(name), epochs, resume)
    };
    on_ranks(&job("ranks", 2, None, None), || sum(2));
    train(&job("one", 2, None, Some(2)), None);
    let ranks_to_one = train(&job("ranks", 3, Some(2), Some(2)), None);
    let ranks_to_ranks = on_ranks(&job("ranks", 3, Some(2), None), || sum(4));
    let one_to_ranks = on_ranks(&job("one", 3, Some(2), None), || sum(2));
    let one_to_one = train(&job("one", 3, Some(2), Some(2)), None);
    assert_same(&ranks_to_one, &one_to_ranks, "one to ranks");
    assert_same(&ranks_to_one, &one_to_one, "one to one");
    assert_eq!(ranks_to_ranks.error, None);
}
