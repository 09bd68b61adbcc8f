//! Wrong use ends in an error that says what to do, never in a hang.

use std::sync::Mutex;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Device;
use burn_dist::DistError;
use burn_dist::data_parallel::{DataParallel, ParameterTable};
use burn_zero::FullyShard;
use tests::run_group;

use crate::adamw;
use crate::models::Toy;
use crate::runs::LR;
use crate::stack::Stack;

fn started() -> Stack {
    let start = Stack::init(&Device::flex().autodiff());
    ParameterTable::of(&start).expect("nothing is wrapped");
    start
}

#[test]
fn wrapping_twice_and_optimizers_that_have_stepped() {
    let start = Mutex::new(started());
    let errors = run_group(2, |group| {
        let device = Device::flex().autodiff();
        let start = start.lock().expect("not poisoned").clone();
        let mut optimizer = adamw();
        let gradients = GradientsParams::from_grads(start.loss(0, &device).backward(), &start);
        let start = optimizer.step(LR, start, gradients);
        let (sharded, model) = FullyShard::new(&group).wrap(start.clone())?;
        let stepped = sharded.check_optimizer(&optimizer).expect_err("stepped");
        sharded.check_optimizer(&adamw())?;
        let twice = FullyShard::new(&group).wrap(model.clone());
        let twice = twice.map(drop).expect_err("wrapped before");
        let over = DataParallel::wrap(model, &group)
            .map(drop)
            .expect_err("wrapped before");
        let frozen = FullyShard::new(&group).wrap(start.no_grad());
        let frozen = frozen.map(drop).expect_err("nothing to train");
        Ok([stepped, twice, over, frozen])
    });
    for errors in errors {
        let parts = [
            "stepped before",
            "already carries",
            "already carries",
            "no trained",
        ];
        for (error, part) in errors.expect("no fault").iter().zip(parts) {
            assert!(matches!(error, DistError::Config { .. }), "{error}");
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}

#[test]
fn models_that_differ_are_named() {
    let errors = run_group(2, |group| {
        let device = Device::flex().autodiff();
        let width = 3 + group.index();
        let model = burn::nn::LinearConfig::new(width, 2).init(&device);
        let outcome = FullyShard::new(&group).wrap(model).map(drop);
        Ok(outcome.expect_err("they differ"))
    });
    for error in errors {
        let error = error.expect("no fault of the group");
        assert!(matches!(error, DistError::Replica { .. }), "{error}");
    }
}

/// One rank evaluates once more than the other: units of one size, so that only their names differ.
#[test]
fn unequal_forward_passes_are_a_named_error() {
    let start = Mutex::new(started());
    let errors = run_group(2, |group| {
        let device = Device::flex().autodiff();
        let start = start.lock().expect("not poisoned").clone();
        let (sharded, model) = FullyShard::new(&group).least_unit_bytes(0).wrap(start)?;
        if group.index() == 1 {
            model.valid().loss(0, &Device::flex());
        }
        let gradients = sharded.gradients(model.loss(0, &device).backward(), &model);
        Ok(gradients.map(drop).expect_err("the passes differ"))
    });
    for error in errors {
        let error = error.expect("the error is the value").to_string();
        assert!(
            error.contains("in an evaluation") && error.contains("in a forward pass"),
            "{error}"
        );
    }
}

#[test]
fn a_backward_pass_on_one_rank_only_is_an_error_on_all() {
    let start = Mutex::new(started());
    let outcomes = run_group(2, |group| {
        let device = Device::flex().autodiff();
        let start = start.lock().expect("not poisoned").clone();
        let (sharded, model) = FullyShard::new(&group).least_unit_bytes(0).wrap(start)?;
        let loss = model.loss(0, &device);
        if group.index() == 0 {
            drop(loss.backward());
        } else {
            drop(model.loss(1, &device));
        }
        Ok(sharded.check().map(drop))
    });
    for outcome in outcomes {
        let error = outcome
            .expect("the error is the value")
            .expect_err("they differ");
        assert!(error.to_string().contains("backward"), "{error}");
    }
}
