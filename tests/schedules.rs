//! Published numbers of pipeline schedules, and that no plan can block: without a tensor.

use burn_pipeline::{
    Action, ActionKind, Schedule, SchedulePlan, StageCosts, lower, partition, simulate, validate,
};

/// Forward one unit, backward two, for `v` stages per rank that make up one.
fn makespan(schedule: &Schedule, p: usize, m: usize) -> f64 {
    let plan = schedule.plan(p, m).expect("a plan");
    let v = plan.num_stages() / p;
    let costs = StageCosts::even(p * v, 1.0 / v as f64);
    simulate(&plan, &costs).expect("it runs").makespan
}

#[test]
fn published_makespans() {
    for schedule in [Schedule::GPipe, Schedule::OneFOneB] {
        for (p, m, right) in [
            (2, 4, 15.0),
            (4, 4, 21.0),
            (4, 8, 33.0),
            (4, 16, 57.0),
            (8, 8, 45.0),
        ] {
            assert_eq!(makespan(&schedule, p, m), right, "{schedule} {p} {m}");
        }
    }
    for (p, m, v, right) in [(2, 4, 2, 13.5), (4, 8, 2, 28.5), (4, 8, 4, 26.25)] {
        assert_eq!(
            makespan(&Schedule::Interleaved(v), p, m),
            right,
            "{p} {m} {v}"
        );
    }
}

#[test]
fn published_bubbles_and_live_activations() {
    for (p, m) in [(2, 4), (4, 4), (4, 8), (4, 16), (8, 8), (8, 3), (3, 1)] {
        let costs = StageCosts::units(p);
        let step = |schedule: Schedule| {
            let plan = schedule.plan(p, m).expect("a plan");
            simulate(&plan, &costs).expect("it runs")
        };
        let bubble = (p - 1) as f64 / (m + p - 1) as f64;
        let (gpipe, one, zero) = (
            step(Schedule::GPipe),
            step(Schedule::OneFOneB),
            step(Schedule::ZeroBubbleH1),
        );
        assert!((gpipe.bubble() - bubble).abs() < 1e-12);
        assert!((one.bubble() - bubble).abs() < 1e-12);
        assert_eq!(gpipe.peak_live, vec![m; p]);
        let live: Vec<usize> = (0..p).map(|r| (p - r).min(m)).collect();
        assert_eq!(one.peak_live, live);
        // Backward in two parts: (p-1)(F + I - W) idle, and no more memory than 1F1B's first stage.
        assert!(
            zero.peak_live.iter().all(|&live| live <= p.min(m)),
            "{:?}",
            zero.peak_live
        );
        if m >= p {
            assert_eq!(
                zero.makespan,
                (3 * m + p - 1) as f64,
                "{p} {m}\n{}",
                Schedule::ZeroBubbleH1.plan(p, m).unwrap()
            );
        }
        assert!(zero.makespan <= one.makespan);
    }
    for (p, m, v) in [(2, 4, 2), (4, 8, 2), (4, 8, 4)] {
        let plan = Schedule::Interleaved(v).plan(p, m).expect("a plan");
        let step = simulate(&plan, &StageCosts::units(p * v)).expect("it runs");
        let ideal = (3 * m * v) as f64;
        let over_ideal = (step.makespan - ideal) / ideal;
        assert!((over_ideal - (p - 1) as f64 / (m * v) as f64).abs() < 1e-12);
    }
}

#[test]
fn published_warm_ups_and_chunks() {
    for p in 1..9 {
        for m in [1, 2, 5, 8, 16] {
            for r in 0..p {
                let first = |schedule: &Schedule, right: usize| {
                    assert_eq!(
                        schedule.warm_up(p, m, r),
                        Some(right),
                        "{schedule} {p} {m} {r}"
                    );
                    let plan = schedule.plan(p, m).expect("a plan");
                    let actions = plan.ranks()[r].iter();
                    let forward = |action: &&Action| action.kind == ActionKind::Forward;
                    let total = actions.clone().filter(forward).count();
                    // And the first of the pairs, if one is left.
                    assert_eq!(actions.take_while(forward).count(), (right + 1).min(total));
                };
                first(&Schedule::OneFOneB, (p - r - 1).min(m));
                for v in [2, 3].into_iter().filter(|_| m % p == 0) {
                    let right = (2 * (p - r - 1) + (v - 1) * p).min(m * v);
                    first(&Schedule::Interleaved(v), right);
                }
            }
        }
    }
    // Layers 1 to 16 on four ranks of two chunks.
    let plan = Schedule::Interleaved(2).plan(4, 4).expect("a plan");
    let layers = partition(&[1.0; 16], plan.num_stages()).expect("fits");
    let of_rank = |rank| -> Vec<Vec<usize>> {
        let stages = plan.stages_of(rank).into_iter();
        stages
            .map(|stage| layers[stage].clone().map(|layer| layer + 1).collect())
            .collect()
    };
    let right = [
        [[1, 2], [9, 10]],
        [[3, 4], [11, 12]],
        [[5, 6], [13, 14]],
        [[7, 8], [15, 16]],
    ];
    for (rank, right) in right.iter().enumerate() {
        assert_eq!(of_rank(rank), right.map(|chunk| chunk.to_vec()));
    }
}

/// Everything that can be asked for.
fn all_plans() -> impl Iterator<Item = (String, SchedulePlan)> {
    let shapes = (1..=8).flat_map(|p| (1..=32).map(move |m| (p, m)));
    shapes.flat_map(|(p, m)| {
        let mut schedules = vec![Schedule::GPipe, Schedule::OneFOneB, Schedule::ZeroBubbleH1];
        schedules.extend((2..=4).filter(|_| m % p == 0).map(Schedule::Interleaved));
        schedules.into_iter().map(move |schedule| {
            let plan = schedule
                .plan(p, m)
                .unwrap_or_else(|e| panic!("{schedule} {p} {m}: {e}"));
            (format!("{schedule}, p {p}, m {m}"), plan)
        })
    })
}

#[test]
fn no_lowered_plan_blocks_and_everything_sent_is_received() {
    let mut count = 0;
    for (what, plan) in all_plans() {
        let lowered = lower(&plan).unwrap_or_else(|error| panic!("{what}: {error}"));
        // Runs with receives that wait for sends in their order.
        let costs = StageCosts::units(plan.num_stages());
        let (plain, step) = (simulate(&plan, &costs), simulate(&lowered, &costs));
        assert_eq!(
            plain.expect("runs").makespan,
            step.expect("runs").makespan,
            "{what}"
        );
        let number = |kind| {
            lowered
                .actions()
                .filter(|action| action.kind == kind)
                .count()
        };
        assert_eq!(
            number(ActionKind::SendForward),
            number(ActionKind::RecvForward),
            "{what}"
        );
        assert_eq!(
            number(ActionKind::SendBackward),
            number(ActionKind::RecvBackward),
            "{what}"
        );
        assert_eq!(number(ActionKind::ReduceGrad), plan.num_stages(), "{what}");
        in_order_of_sending(&what, &lowered);
        reduced_last(&what, &lowered);
        count += 1;
    }
    assert!(count > 800, "{count} plans");
}

/// Between two ranks, receives stand in the order of sends.
fn in_order_of_sending(what: &str, plan: &SchedulePlan) {
    let of = |rank: usize, kind, peer: &dyn Fn(usize) -> Option<usize>, other: usize| -> Vec<_> {
        let actions = plan.ranks()[rank]
            .iter()
            .filter(|action| action.kind == kind);
        let between = actions.filter(|action| {
            peer(action.stage).and_then(|stage| plan.rank_of(stage)) == Some(other)
        });
        between
            .map(|action| (action.stage, action.micro_batch))
            .collect()
    };
    let (next, before) = (|s: usize| Some(s + 1), |s: usize| s.checked_sub(1));
    for a in 0..plan.ranks().len() {
        for b in 0..plan.ranks().len() {
            let sent = of(a, ActionKind::SendForward, &next, b);
            let received = of(b, ActionKind::RecvForward, &before, a);
            let arrives: Vec<_> = sent.iter().map(|(s, m)| (s + 1, *m)).collect();
            assert_eq!(arrives, received, "{what}: forward from {a} to {b}");
            let sent = of(a, ActionKind::SendBackward, &before, b);
            let received = of(b, ActionKind::RecvBackward, &next, a);
            let arrives: Vec<_> = sent.iter().map(|(s, m)| (s - 1, *m)).collect();
            assert_eq!(arrives, received, "{what}: backward from {a} to {b}");
        }
    }
}

fn reduced_last(what: &str, plan: &SchedulePlan) {
    for actions in plan.ranks() {
        for (index, action) in actions.iter().enumerate() {
            let reduces = |other: &Action| {
                other.kind == ActionKind::ReduceGrad && other.stage == action.stage
            };
            let reduced = actions
                .iter()
                .position(reduces)
                .expect("each stage is reduced");
            if action.kind.is_compute() {
                assert!(index < reduced, "{what}: {action} after its reduction");
            }
        }
    }
}

#[test]
fn plans_print_and_parse() {
    for (what, plan) in all_plans().step_by(7) {
        assert_eq!(plan.to_string().parse(), Ok(plan.clone()), "{what}");
        let lowered = lower(&plan).expect("right");
        assert_eq!(lowered.to_string().parse(), Ok(lowered), "{what}");
    }
}

fn refusal(text: &str) -> String {
    let plan: SchedulePlan = text.parse().expect("words");
    validate(&plan).expect_err("refused").to_string()
}

#[test]
fn a_wrong_plan_is_shown_with_the_action_marked() {
    for (text, words) in [
        ("0F0 0B0\n0F1 1F0 1B0", ">>0F1<<"),
        ("0F0 0F0 0B0", ">>0F0<< 0B0"),
        ("0B0 0F0", ">>0B0<< 0F0"),
        ("0F0 0W0 0I0", "0F0 >>0W0<< 0I0"),
        ("0F0 0I0 0W0 0B0", ">>0B0<<"),
        ("0F0 0F1 0B0", "0B1 is missing"),
        ("0F0 0I0", "0W0 is missing"),
        ("0F0 0F1 0B0 0B1\n1F0 1B0", "1F1 is missing"),
        ("0F0 0B0\n2F0 2B0", "1F0 is missing"),
        ("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0", "waits for ever"),
        ("", "without actions"),
    ] {
        let error = refusal(text);
        assert!(error.contains(words), "{text:?}: {error}");
    }
}

#[test]
fn what_no_schedule_can_do_is_refused_by_name() {
    let plan = |name: &str, p, m| name.parse::<Schedule>().and_then(|s| s.plan(p, m));
    let error = plan("interleaved:2", 4, 6)
        .expect_err("refused")
        .to_string();
    assert!(
        error.contains("6 micro-batches on 4 ranks") && error.contains("take 8"),
        "{error}"
    );
    for (name, words) in [
        ("interleaved:0", "interleaved:2"),
        ("interleaved:x", "interleaved:2"),
        ("2f2b", "take gpipe, 1f1b"),
    ] {
        let error = plan(name, 2, 2).expect_err("refused").to_string();
        assert!(error.contains(words), "{error}");
    }
    assert!(plan("1f1b", 0, 2).is_err() && plan("1f1b", 2, 0).is_err());
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("plan.txt");
    let name = path.to_str().expect("plain letters");
    std::fs::write(&path, "0: 0F0 0F1 0B1 0B0\n1: 1F0 1F1 1B1 1B0\n").expect("written");
    assert!(plan(name, 2, 2).is_ok());
    let error = plan(name, 2, 3).expect_err("refused").to_string();
    assert!(error.contains("2 ranks and 2 micro-batches"), "{error}");
}
