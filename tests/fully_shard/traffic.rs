//! Calls counted, bytes counted, memory counted.

use std::sync::{Arc, Mutex};

use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::Device;
use burn_dist::communicator::{Operation, RecordingCommunicator};
use burn_dist::data_parallel::{ParameterTable, broadcast_untrained};
use burn_dist::{ProcessGroup, Result};
use burn_zero::{FullyShard, FullySharded, StateBytes, ZeroStage};
use tests::run_group;

use crate::adamw;
use crate::models::{Toy, fill};
use crate::runs::{LR, bits};
use crate::stack::{DEPTH, LAYER, Stack, WIDTH};
use crate::wide::Wide;

/// Calls since the log was cleared: gathers and reductions of gradients.
fn counts(log: &RecordingCommunicator) -> (usize, usize) {
    let calls = log.calls();
    let of = |operation: fn(&Operation) -> bool| {
        let calls = calls.iter();
        let calls = calls.filter(|call| operation(&call.operation));
        calls.count()
    };
    log.clear();
    (
        of(|operation| matches!(operation, Operation::AllGather)),
        of(|operation| matches!(operation, Operation::ReduceScatter(_))),
    )
}

fn recorded<T: Send + 'static>(
    n: usize,
    f: impl Fn(ProcessGroup, &RecordingCommunicator, Stack) -> Result<T> + Send + Sync,
) -> Vec<T> {
    let start = Stack::init(&Device::flex().autodiff());
    ParameterTable::of(&start).expect("nothing is wrapped");
    let start = Mutex::new(start);
    let found = run_group(n, |group| {
        let log = Arc::new(RecordingCommunicator::new(group.communicator().clone()));
        let start = start.lock().expect("not poisoned").clone();
        f(ProcessGroup::new(log.clone()), &log, start)
    });
    found
        .into_iter()
        .map(|found| found.expect("no fault"))
        .collect()
}

fn backward(model: &Stack, item: usize) -> burn::tensor::Gradients {
    model.loss(item, &Device::flex().autodiff()).backward()
}

#[test]
fn a_pass_gathers_and_reduces_each_unit_as_often_as_it_says() {
    recorded(2, |group, log, start| {
        let settings = FullyShard::new(&group).least_unit_bytes(0);
        let (sharded, mut model) = settings.wrap(start)?;
        let mut optimizer = adamw();
        for step in 0..4 {
            counts(log);
            // The unit that the forward pass ends with is still there.
            let gradients = sharded.gradients(backward(&model, step), &model)?;
            assert_eq!(counts(log), (2 * DEPTH - 1, DEPTH), "step {step}");
            model = optimizer.step(LR, model, gradients);
        }
        // Three micro-steps: whole gradients are kept, and reduced once.
        counts(log);
        for item in 0..2 {
            sharded.no_sync(|| backward(&model, item));
            assert_eq!(counts(log), (2 * DEPTH - 1, 0));
        }
        sharded.gradients(backward(&model, 2), &model)?;
        assert_eq!(counts(log), (2 * DEPTH - 1, DEPTH));
        // Or each is reduced, and shards are added up.
        let mut sum = GradientsAccumulator::new();
        for item in 0..3 {
            let gradients = GradientsParams::from_grads(backward(&model, item), &model);
            sum.accumulate(&model, gradients);
        }
        assert_eq!(counts(log), (3 * (2 * DEPTH - 1), 3 * DEPTH));
        // An evaluation; the first unit of a next one is on its way at the end of the second.
        let valid = model.valid();
        for _ in 0..3 {
            valid.loss(0, &Device::flex());
        }
        let (gathers, reductions) = counts(log);
        assert!((3 * DEPTH..=3 * DEPTH + 1).contains(&gathers), "{gathers}");
        assert_eq!(reductions, 0);
        Ok(())
    });
}

/// Once the order is known, a unit is under way before its layer is reached.
#[test]
fn the_next_unit_travels_while_this_one_computes() {
    for (prefetch, expected) in [(true, 3), (false, 2)] {
        recorded(2, |group, log, start| {
            let settings = FullyShard::new(&group).least_unit_bytes(0);
            let (_, model) = settings.prefetch(prefetch).wrap(start)?;
            let x = || fill([3, WIDTH], 1, &Device::flex());
            drop(model.valid().forward(x()));
            counts(log);
            drop(model.valid().start(x(), 2));
            assert_eq!(counts(log).0, expected, "prefetch: {prefetch}");
            Ok(())
        });
    }
}

#[test]
fn kept_units_are_gathered_once() {
    recorded(3, |group, log, start| {
        let settings = FullyShard::new(&group).least_unit_bytes(0);
        let (sharded, mut model) = settings.reshard_after_forward(false).wrap(start)?;
        let mut optimizer = adamw();
        for step in 0..3 {
            counts(log);
            let gradients = sharded.gradients(backward(&model, step), &model)?;
            assert_eq!(counts(log), (DEPTH, DEPTH));
            model = optimizer.step(LR, model, gradients);
        }
        Ok(())
    });
}

#[test]
fn bytes_sent_are_those_of_the_formula() {
    for n in [2, 3, 4] {
        let sent = recorded(n, |group, _, start| {
            let settings = FullyShard::new(&group).least_unit_bytes(0);
            let (sharded, model) = settings.wrap(start)?;
            let before = group.traffic();
            sharded.gradients(backward(&model, 0), &model)?;
            Ok((&group.traffic() - &before).total_sent())
        });
        let unit = (LAYER.next_multiple_of(n) * size_of::<f32>()) as u64;
        let depth = DEPTH as u64;
        let gathered = (2 * depth - 1) * unit;
        let reduced = depth * unit;
        // And a byte per parameter, to know which were used.
        let flags = 2 * 4 * depth;
        let formula = (gathered + reduced + flags) * (n as u64 - 1);
        assert_eq!(sent.iter().sum::<u64>(), formula, "{n} ranks");
    }
}

/// Nothing of it is split, and nothing is there that is not trained.
#[test]
fn what_stands_in_for_parameters_is_not_sent() {
    let sent = recorded(2, |group, _, start| {
        let table = ParameterTable::of(&start)?;
        let (_, model) = FullyShard::new(&group).wrap(start)?;
        let before = group.traffic();
        broadcast_untrained(model.valid(), &table, &group)?;
        Ok((&group.traffic() - &before).total_sent())
    });
    assert_eq!(sent, [0, 0]);
}

/// A step, and the most bytes in gathered units and gradients at once.
fn peak(
    sharded: &FullySharded,
    group: &ProcessGroup,
    model: &Stack,
    item: usize,
) -> Result<(usize, GradientsParams)> {
    let pool = group.communicator().pool();
    pool.mark_peak();
    let gradients = sharded.gradients(backward(model, item), model)?;
    Ok((pool.peak_bytes(), gradients))
}

#[test]
fn at_most_two_units_are_whole() {
    const UNIT: usize = LAYER * size_of::<f32>();
    for n in [2, 4] {
        recorded(n, |group, _, start| {
            let settings = FullyShard::new(&group).least_unit_bytes(0);
            let (sharded, mut model) = settings.wrap(start)?;
            let mut optimizer = adamw();
            let pool = group.communicator().pool().clone();
            let own = UNIT.div_ceil(n);
            // In an evaluation: two units, and what this rank sends of one.
            let valid = model.valid();
            for _ in 0..3 {
                pool.mark_peak();
                valid.loss(0, &Device::flex());
                let peak = pool.peak_bytes();
                assert!(peak <= 2 * UNIT + 2 * own + 64, "evaluation: {peak}");
            }
            drop(valid);
            // The unit that was on its way for a next batch has come and gone.
            group.barrier()?;
            assert_eq!(pool.used_bytes(), 0, "at rest");
            for step in 0..4 {
                let (peak, gradients) = peak(&sharded, &group, &model, step)?;
                // Two units of parameters, two of gradients, the reduced shards, what is on its way.
                let most = 4 * UNIT + DEPTH * own + 3 * own + 256;
                assert!(
                    peak <= most,
                    "step {step} of {n} ranks: {peak}, at most {most}"
                );
                model = optimizer.step(LR, model, gradients);
                assert_eq!(pool.used_bytes(), 0, "at rest");
            }
            Ok(())
        });
    }
}

#[test]
fn each_rank_keeps_its_part_of_the_state() {
    let start = Wide::init(&Device::flex().autodiff());
    let table = ParameterTable::of(&start).expect("nothing is wrapped");
    let all: usize = table.specs().iter().map(|spec| spec.num_elements()).sum();
    let start = Mutex::new(start);
    for n in [2, 4] {
        let found = run_group(n, |group| {
            let device = Device::flex().autodiff();
            let start = start.lock().expect("not poisoned").clone();
            let (sharded, mut model) = FullyShard::new(&group).wrap(start)?;
            let mut optimizer = adamw();
            let gradients = sharded.gradients(model.loss(0, &device).backward(), &model)?;
            model = optimizer.step(LR, model, gradients);
            drop(model);
            let held = sharded.num_elements() * size_of::<f32>();
            let state = optimizer.to_record().into_bytes().expect("a record");
            Ok((held, state.len(), sharded.layout().padding()))
        });
        for found in found {
            let (held, state, padding) = found.expect("no fault");
            println!("{n} ranks: {held} + {state} bytes, padding {padding} elements");
            let formula = StateBytes {
                gradient: 0.0,
                ..StateBytes::ADAM_F32
            };
            let formula = formula.per_rank(ZeroStage::Parameters, all as f64, n);
            let found = (held + state) as f64;
            assert!(
                (found - formula).abs() <= 0.01 * formula,
                "{found} {formula}"
            );
        }
    }
}

#[test]
fn memory_does_not_grow_over_a_thousand_steps() {
    recorded(2, |group, _, start| {
        let (sharded, mut model) = FullyShard::new(&group).least_unit_bytes(0).wrap(start)?;
        let mut optimizer = adamw();
        let pool = group.communicator().pool().clone();
        let mut held = 0;
        for step in 0..1000 {
            let gradients = sharded.gradients(backward(&model, step % 7), &model)?;
            model = optimizer.step(1e-4, model, gradients);
            match step {
                20 => held = pool.held_bytes(),
                21.. => assert!(pool.held_bytes() <= held, "step {step}"),
                _ => {}
            }
        }
        Ok(())
    });
}

#[test]
fn lazy_parameters_are_drawn_on_the_first_rank_only() {
    use burn::module::{Param, ParamId};
    use burn::nn::Linear;
    use burn::tensor::{Shape, Tensor};
    let drawn = Arc::new(Mutex::new(Vec::new()));
    let found = run_group(3, |group| {
        let device = Device::flex().autodiff();
        let (drawn, rank) = (drawn.clone(), group.rank());
        let draw = move |device: &Device, require_grad: bool| {
            drawn.lock().expect("not poisoned").push(rank);
            Tensor::<2>::ones([6, 5], device).set_require_grad(require_grad)
        };
        let shape = Shape::from([6, 5]);
        let weight = Param::uninitialized(ParamId::new(), draw, device.clone(), true, shape);
        let model = Linear { weight, bias: None };
        let (_, model) = FullyShard::new(&group).wrap(model)?;
        Ok(bits(&model.materialize()))
    });
    let ones: Vec<u8> = [1f32; 30].iter().flat_map(|x| x.to_ne_bytes()).collect();
    for found in found {
        assert_eq!(found.expect("no fault"), std::slice::from_ref(&ones));
    }
    assert_eq!(*drawn.lock().expect("not poisoned"), [0]);
}
