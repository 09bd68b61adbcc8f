//! A step that ran, on one clock.

use std::collections::HashMap;
use std::time::SystemTime;

use burn_dist::launch_threads;
use burn_dist::random::RandomStream;
use burn_pipeline::pictures::{ClockOffset, RankTrace, StepTrace};
use burn_pipeline::{Action, ActionKind, PipelineLinks, PipelineRuntime, Schedule, lower};

use super::toy::{Item, Kind, Toy};
use super::{device, options};

const MICRO_BATCHES: usize = 4;

#[test]
fn a_trace_holds_every_action_and_call_in_their_order() {
    for schedule in [Schedule::OneFOneB, Schedule::ZeroBubbleH1] {
        let plan = schedule.plan(2, MICRO_BATCHES).expect("right");
        let traces = launch_threads(2, options(), |world| {
            let group = world.whole()?;
            let links = PipelineLinks::over(&world, &[0, 1])?;
            let mut runtime = PipelineRuntime::new(&plan, links, &device())?;
            let first = 2 * world.rank();
            let stream = RandomStream::new(3);
            let stages = [Toy::new(Kind::Mlp, first..first + 2, 4, 0.0, &stream)];
            let batches = (0..MICRO_BATCHES).map(|number| Item::of(0, number..number + 1));
            let batches: Vec<Item> = batches.collect();
            let from = SystemTime::now();
            let step = runtime.step(&stages, &batches, &[1.0; MICRO_BATCHES])?;
            let mut own = RankTrace::new(world.rank());
            own.add_step(&step.spans);
            let recorder = world.flight_recorder().expect("threads have one");
            own.add_calls(&recorder.log("a test", true), from, SystemTime::now());
            StepTrace::gather(&group, own)
        });
        let mut traces = traces.expect("no fault");
        assert!(traces.pop().expect("two ranks").is_none());
        let trace = traces.remove(0).expect("the first rank's");
        let lowered = lower(&plan).expect("right");
        let mut times: HashMap<Action, (f64, f64)> = HashMap::new();
        for (rank, actions) in trace.ranks().iter().zip(lowered.ranks()) {
            let names: Vec<String> = actions.iter().map(ToString::to_string).collect();
            let spans = &rank.steps[0];
            let traced: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
            assert_eq!(traced, names, "all actions, in order");
            for (action, span) in actions.iter().zip(spans) {
                assert!(span.start <= span.end);
                times.insert(*action, (span.start, span.end));
            }
            // A header and a tensor for each of a message each way.
            assert_eq!(rank.calls.len(), 2 * 2 * MICRO_BATCHES);
            assert!(!rank.incomplete);
        }
        for micro_batch in 0..MICRO_BATCHES {
            let of = |stage, kind| times[&Action::new(stage, kind, micro_batch)];
            let back = match schedule {
                Schedule::ZeroBubbleH1 => ActionKind::BackwardInput,
                _ => ActionKind::Backward,
            };
            let slack = trace.clock_error();
            assert!(of(0, ActionKind::Forward).1 <= of(1, ActionKind::Forward).0 + slack);
            assert!(of(1, back).1 <= of(0, back).0 + slack);
        }
        let chart = trace.chart("a step").expect("there are passes");
        assert!(chart.makespan() > 0.0 && chart.bubble() < 1.0);
        assert!(chart.to_svg().is_ok());
    }
}

#[test]
fn threads_share_a_clock() {
    let clocks = launch_threads(3, options(), |world| {
        let clock = ClockOffset::measure(&world.whole()?)?;
        Ok(clock.microseconds)
    });
    assert_eq!(clocks.expect("no fault"), [0.0; 3]);
}
