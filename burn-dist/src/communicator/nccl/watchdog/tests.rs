use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::DType;

use super::super::fake_ranks::{LONGEST, SUM, machines, on_ranks, options};
use super::super::fakes::Machine;
use super::super::nccl_functions::INVALID_USAGE;
use super::*;
use crate::communicator::{CommunicatorOptions, Operation};

fn texts(errors: Vec<DistError>) -> Vec<String> {
    errors.iter().map(DistError::to_string).collect()
}

fn stuck(machines: &[Arc<Machine>]) {
    for machine in machines {
        machine.stuck.store(true, Ordering::SeqCst);
    }
}

fn short(timeout: u64) -> CommunicatorOptions {
    CommunicatorOptions {
        timeout: Duration::from_millis(timeout),
        ..options()
    }
}

#[test]
fn a_call_that_does_not_end_is_aborted_at_the_timeout() {
    let machines = machines(2);
    stuck(&machines);
    on_ranks(machines, short(1500), |rank| {
        let rank = rank.expect("they meet");
        rank.start(Operation::AllGather, DType::F32, &[3])
            .expect("a good call")
            .wait()
            .expect("not known yet");
        let work = rank.start(SUM, DType::F32, &[4, 2]).expect("a good call");
        assert!(!work.is_done());
        let failure = rank.wait_for_failure();
        match failure.root_cause() {
            DistError::Timeout {
                rank: own,
                sequence,
                operation,
                waiting_for,
                ..
            } => {
                assert_eq!(
                    (*own, *sequence, waiting_for),
                    (rank.index, 0, &vec![1 - rank.index])
                );
                assert_eq!(operation, "all_gather f32 [3] on the device");
            }
            // The other rank was first, and has told this one.
            other => panic!("{other}"),
        }
        rank.wait_for_abort();
        work.wait().expect_err("the group failed");
        let error = rank
            .start(SUM, DType::F32, &[4])
            .expect_err("the group failed");
        assert!(matches!(error, DistError::Poisoned { .. }), "{error}");
        assert_eq!(error.root_cause(), failure.root_cause());
    });
}

#[test]
fn what_nccl_reports_later_ends_the_group() {
    for (state, lost) in [(REMOTE_ERROR, true), (INVALID_USAGE, false)] {
        let machines = machines(2);
        stuck(&machines);
        on_ranks(machines, options(), move |rank| {
            let rank = rank.expect("they meet");
            let work = rank.start(SUM, DType::F32, &[4]).expect("a good call");
            rank.machine.state.store(state, Ordering::SeqCst);
            let failure = rank.wait_for_failure();
            assert_eq!(
                matches!(failure, DistError::PeerLost { .. }),
                lost,
                "{failure}"
            );
            assert_eq!(
                matches!(failure, DistError::Device { .. }),
                !lost,
                "{failure}"
            );
            let text = failure.to_string();
            assert!(
                text.contains("words of NCCL") && text.contains("the last error"),
                "{text}"
            );
            assert!(
                text.contains("group world, call 0 (all_reduce(sum) f32 [4]"),
                "{text}"
            );
            rank.wait_for_abort();
            drop(work);
            // As if it had never been.
            rank.machine.state.store(0, Ordering::SeqCst);
            let error = rank
                .start(SUM, DType::F32, &[4])
                .expect_err("the group failed");
            assert!(matches!(error, DistError::Poisoned { .. }), "{error}");
        });
    }
}

#[test]
fn a_group_that_fails_elsewhere_lets_go_of_the_device() {
    let machines = machines(2);
    stuck(&machines);
    on_ranks(machines, options(), |rank| {
        let rank = rank.expect("they meet");
        let work = rank.start(SUM, DType::F32, &[4]).expect("a good call");
        // As a call on host memory does that fails, or `ProcessGroup::abort`.
        match rank.index {
            0 => rank.host.abort(DistError::config("a test", "end it")),
            _ => rank
                .communicator
                .abort(DistError::config("a test", "end it")),
        }
        rank.wait_for_abort();
        assert_eq!(work.wait(), Err(DistError::config("a test", "end it")));
        assert!(!rank.machine.log().contains(&"finalize".into()));
    });
}

#[test]
fn a_failure_within_a_group_of_pairs_ends_that_group() {
    let errors = on_ranks(machines(2), options(), |rank| {
        let rank = rank.expect("they meet");
        rank.machine
            .send_result
            .store(INVALID_USAGE, Ordering::SeqCst);
        rank.machine.take_log();
        let (to, from, receive) = (Some(1 - rank.index), Some(1 - rank.index), vec![1]);
        let operation = Operation::SendRecv { to, from, receive };
        let error = rank
            .start(operation, DType::F32, &[1])
            .expect_err("it failed");
        (error, rank.machine.take_log(), 1 - rank.index)
    });
    for (error, log, peer) in errors {
        assert!(matches!(error, DistError::Device { .. }), "{error}");
        let before = ["the device's work is noted", "the stream waits", "group"];
        assert_eq!(log[..3], before);
        let sent = format!("send(1000, 1 of 7, to {peer})");
        // Nothing is left on the device when the memory goes.
        assert_eq!(log[3..], [&sent, "end", "abort", "memory is given back"]);
    }
}

#[test]
fn members_that_do_not_come_to_nccl_are_not_waited_for() {
    let machines = machines(2);
    machines[1].in_progress.store(i32::MAX, Ordering::SeqCst);
    let options = CommunicatorOptions {
        startup_timeout: Duration::from_millis(300),
        ..options()
    };
    let errors = on_ranks(machines, options, |rank| {
        rank.map(drop).expect_err("they do not meet")
    });
    let texts = texts(errors);
    assert!(
        texts[0].contains("rank(s) [1] did not come to it"),
        "{texts:?}"
    );
    assert!(
        texts[1].contains("not all ranks came to it within 300ms"),
        "{texts:?}"
    );
}

#[test]
fn nccl_may_take_its_time() {
    let machines = machines(2);
    machines[0].in_progress.store(500, Ordering::SeqCst);
    on_ranks(machines, options(), |rank| {
        let rank = rank.expect("they meet");
        rank.machine.in_progress.store(300, Ordering::SeqCst);
        rank.calls(SUM, DType::F32, &[3]);
        // What stands on the stream is only noted once it stands there.
        assert_eq!(rank.machine.in_progress.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn a_device_is_for_one_rank_and_a_version_for_all() {
    let twins = machines(3);
    twins[2].uuid.store(0, Ordering::SeqCst);
    let errors = on_ranks(twins, options(), |rank| {
        rank.map(drop).expect_err("they share")
    });
    for text in texts(errors) {
        assert!(text.starts_with("ranks 0 and 2 use one device"), "{text}");
    }
    let mixed = machines(2);
    mixed[1].nccl_version.store(22_805, Ordering::SeqCst);
    let errors = on_ranks(mixed, options(), |rank| {
        rank.map(drop).expect_err("they differ")
    });
    for text in texts(errors) {
        assert!(
            text.starts_with("rank 0 has NCCL 2.32.3, but rank 1 has 2.28.5"),
            "{text}"
        );
    }
}

#[test]
fn calls_are_not_compared_if_the_options_say_so() {
    let options = CommunicatorOptions {
        check_calls: false,
        ..options()
    };
    let first_is_through = Arc::new(AtomicBool::new(false));
    on_ranks(machines(2), options, move |rank| {
        let rank = rank.expect("they meet");
        if rank.index == 0 {
            rank.calls(SUM, DType::F32, &[3]);
            first_is_through.store(true, Ordering::SeqCst);
            return;
        }
        let start = Instant::now();
        while !first_is_through.load(Ordering::SeqCst) {
            assert!(start.elapsed() < LONGEST, "rank 0 waits");
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

#[test]
fn more_calls_than_a_queue_takes_wait_and_do_not_hang() {
    let options = CommunicatorOptions {
        check_calls: false,
        ..short(1500)
    };
    let machines = machines(1);
    stuck(&machines);
    on_ranks(machines, options, |rank| {
        let rank = rank.expect("alone");
        let start = Instant::now();
        let mut works = Vec::new();
        let error = loop {
            match rank.start(SUM, DType::F32, &[1]) {
                Ok(work) => works.push(work),
                Err(error) => break error,
            }
        };
        assert!(start.elapsed() >= Duration::from_millis(1000));
        assert_eq!(works.len(), 128);
        assert!(
            matches!(error.root_cause(), DistError::Timeout { .. }),
            "{error}"
        );
    });
}
