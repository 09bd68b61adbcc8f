//! Models and programs that are not the usual ones.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{DType, Device, Tensor};
use burn_dist::data_parallel::ParameterTable;
use burn_zero::{FullyShard, LossScale};
use tests::run_group;

use crate::adamw;
use crate::models::{Toy, fill};
use crate::runs::{LR, bits, check};
use crate::stack::Stack;

/// Nothing in it, one number, three numbers, a layer that may be absent, and a list of lists.
#[derive(Module, Debug)]
struct Odd {
    nothing: Param<Tensor<2>>,
    one: Param<Tensor<1>>,
    three: Param<Tensor<3>>,
    absent: Option<Linear>,
    present: Option<Linear>,
    lists: Vec<Vec<Linear>>,
}

impl Toy for Odd {
    fn init(device: &Device) -> Self {
        let linear = |i, o| LinearConfig::new(i, o).init(device);
        Self {
            nothing: Param::from_tensor(Tensor::zeros([0, 4], device)),
            one: Param::from_tensor(Tensor::ones([1], device)),
            three: Param::from_tensor(Tensor::ones([1, 3, 1], device)),
            absent: None,
            present: Some(linear(3, 5)),
            lists: vec![vec![linear(5, 2), linear(2, 7)], vec![linear(7, 1)], vec![]],
        }
    }

    fn loss(&self, item: usize, device: &Device) -> Tensor<1> {
        let scale = self.three.val().reshape([1, 3]);
        let mut x = fill([2, 3], item, device) * scale;
        if let Some(layer) = &self.present {
            x = layer.forward(x);
        }
        for layer in self.lists.iter().flatten() {
            x = layer.forward(x);
        }
        x = x * self.one.val().unsqueeze();
        x.square().mean() + self.nothing.val().sum()
    }
}

#[test]
fn odd_shapes_and_containers() {
    check::<Odd>(adamw);
}

/// One parameter at two places of the model.
#[derive(Module, Debug)]
struct Shared {
    first: Linear,
    second: Linear,
}

impl Shared {
    fn loss(&self, device: &Device) -> Tensor<1> {
        let x = self.first.forward(fill([2, 3], 1, device));
        self.second.forward(x).square().mean()
    }
}

/// Burn's optimizer would step one of the places; here both follow.
#[test]
fn a_parameter_at_two_places_is_one() {
    let device = Device::flex().autodiff();
    let first = LinearConfig::new(3, 3).init(&device);
    let model = Shared {
        second: first.clone(),
        first,
    };
    ParameterTable::of(&model).expect("nothing is wrapped");
    let shared = Mutex::new(model);
    let found = run_group(2, |group| {
        let device = Device::flex().autodiff();
        let start = shared.lock().expect("not poisoned").clone();
        let (sharded, mut model) = FullyShard::new(&group).wrap(start)?;
        let mut optimizer = adamw();
        for _ in 0..3 {
            let gradients = sharded.gradients(model.loss(&device).backward(), &model)?;
            model = optimizer.step(LR, model, gradients);
        }
        let whole = model.materialize();
        Ok((
            whole.first.weight.val().into_data(),
            whole.second.weight.val().into_data(),
        ))
    });
    let mut plain = LinearConfig::new(3, 3).init(&device);
    plain.weight = shared.lock().expect("not poisoned").first.weight.clone();
    plain.bias = shared.lock().expect("not poisoned").first.bias.clone();
    let mut optimizer = adamw();
    for _ in 0..3 {
        let x = plain.forward(plain.forward(fill([2, 3], 1, &device)));
        let gradients = GradientsParams::from_grads(x.square().mean().backward(), &plain);
        plain = optimizer.step(LR, plain, gradients);
    }
    for found in found {
        let (first, second) = found.expect("no fault");
        assert_eq!(first, second);
        assert_eq!(first, plain.weight.val().into_data());
    }
}

/// Units hold one element type.
#[derive(Module, Debug)]
struct Both {
    narrow: Linear,
    wide: Param<Tensor<2>>,
}

#[test]
fn parameters_of_two_element_types() {
    let device = Device::flex().autodiff();
    let wide = Tensor::<2>::ones([3, 3], (&device, DType::F64));
    let model = Both {
        narrow: LinearConfig::new(2, 3).init(&device),
        wide: Param::from_tensor(wide),
    };
    ParameterTable::of(&model).expect("nothing is wrapped");
    let loss = |model: &Both, device: &Device| {
        let x = model
            .narrow
            .forward(fill([2, 2], 1, device))
            .cast(DType::F64);
        x.matmul(model.wide.val()).square().mean()
    };
    let step = |model, gradients| SgdConfig::new().init().step(0.1, model, gradients);
    let gradients = GradientsParams::from_grads(loss(&model, &device).backward(), &model);
    let expected = bits(&step(model.clone(), gradients));
    let shared = Mutex::new(model);
    let found = run_group(2, |group| {
        let device = Device::flex().autodiff();
        let start = shared.lock().expect("not poisoned").clone();
        let (sharded, model) = FullyShard::new(&group).wrap(start)?;
        let gradients = sharded.gradients(loss(&model, &device).backward(), &model)?;
        let (gradients, norm) = sharded.clip_grad_norm(gradients, &model, 1e9)?;
        assert!(norm > 0.0);
        Ok(bits(&step(model, gradients).materialize()))
    });
    for found in found {
        assert!(found.expect("no fault") == expected);
    }
}

/// A wrapped model is not a whole one: what it writes down does not load as if it were.
#[test]
fn records_of_wrapped_models_are_refused() {
    let start = Mutex::new(Stack::init(&Device::flex().autodiff()));
    let found = run_group(2, |group| {
        let plain = start.lock().expect("not poisoned").clone();
        let (_, model) = FullyShard::new(&group).wrap(plain.clone())?;
        let record = model.clone().into_record();
        let loaded = plain.clone().try_load_record(record).is_ok();
        let into = model
            .clone()
            .try_load_record(plain.clone().into_record())
            .is_ok();
        let whole = model.materialize().into_record();
        Ok((loaded, into, plain.try_load_record(whole).is_ok()))
    });
    for found in found {
        assert_eq!(found.expect("no fault"), (false, false, true));
    }
}

#[test]
fn passes_without_an_end_leave_nothing_behind() {
    let start = Mutex::new(Stack::init(&Device::flex().autodiff()));
    let found = run_group(2, |group| {
        let device = Device::flex().autodiff();
        let start = start.lock().expect("not poisoned").clone();
        let (sharded, mut model) = FullyShard::new(&group).least_unit_bytes(0).wrap(start)?;
        let pool = group.communicator().pool().clone();
        let mut held = 0;
        for step in 0..30 {
            // Its loss is dropped; a validation pass stands between the passes of training.
            drop(model.loss(step, &device));
            let loss = model.loss(step, &device);
            drop(model.valid().loss(step, &Device::flex()));
            let gradients = sharded.gradients(loss.backward(), &model)?;
            model = adamw().step(LR, model, gradients);
            match step {
                5 => held = pool.held_bytes(),
                6.. => assert!(pool.held_bytes() <= held, "step {step}"),
                _ => {}
            }
        }
        sharded.check()
    });
    found.into_iter().for_each(|found| found.expect("no fault"));
}

#[test]
fn a_rank_that_panics_ends_the_others() {
    let start = Mutex::new(Stack::init(&Device::flex().autodiff()));
    let found = run_group(2, |group| {
        let device = Device::flex().autodiff();
        let start = start.lock().expect("not poisoned").clone();
        let (sharded, model) = FullyShard::new(&group).least_unit_bytes(0).wrap(start)?;
        if group.index() == 1 {
            let lost = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                // Its communicator goes with it.
                let taken = (group, sharded, model);
                if taken.0.index() == 1 {
                    panic!("on purpose");
                }
            }));
            assert!(lost.is_err());
            return Ok(String::new());
        }
        let loss = model.loss(0, &device);
        let gradients = sharded.gradients(loss.backward(), &model);
        Ok(gradients
            .map(drop)
            .expect_err("the peer is gone")
            .to_string())
    });
    let error = found[0].as_ref().expect("the error is the value");
    assert!(error.contains("rank 1"), "{error}");
}

#[test]
fn not_a_number_on_one_rank_is_seen_by_all() {
    let start = Mutex::new(Stack::init(&Device::flex().autodiff()));
    let found = run_group(3, |group| {
        let device = Device::flex().autodiff();
        let start = start.lock().expect("not poisoned").clone();
        let (sharded, model) = FullyShard::new(&group).least_unit_bytes(0).wrap(start)?;
        let factor = if group.index() == 2 { f32::NAN } else { 1.0 };
        let loss = model.loss(0, &device).mul_scalar(factor);
        let gradients = sharded.gradients(loss.backward(), &model)?;
        let (gradients, norm) = sharded.clip_grad_norm(gradients, &model, 1.0)?;
        assert_eq!(norm, f64::INFINITY);
        let mut scale = LossScale::default();
        Ok(sharded.unscale(gradients, &model, &mut scale)?.is_none())
    });
    for found in found {
        assert!(found.expect("no fault"));
    }
}

/// Freezing a layer of the wrapped model, as in a plain one.
#[test]
fn a_part_is_mapped_on_its_own() {
    #[derive(Module, Debug)]
    struct Three {
        a: Linear,
        b: Linear,
        c: Linear,
    }
    fn loss(model: &Three, item: usize, device: &Device) -> Tensor<1> {
        let x = model.a.forward(fill([2, 6], item, device));
        let x = model.b.forward(burn::tensor::activation::relu(x));
        model.c.forward(x).square().mean()
    }
    let device = Device::flex().autodiff();
    let start = Three {
        a: LinearConfig::new(6, 7).init(&device),
        b: LinearConfig::new(7, 5).init(&device),
        c: LinearConfig::new(5, 3).init(&device),
    };
    ParameterTable::of(&start).expect("nothing is wrapped");
    let frozen = |mut model: Three| {
        model.b = model.b.no_grad();
        model
    };
    let weights =
        |model: &Three| [&model.a, &model.b, &model.c].map(|layer| layer.weight.val().into_data());
    let mut plain = start.clone();
    let mut optimizer = adamw();
    for step in 0..4 {
        if step == 1 {
            plain = frozen(plain);
        }
        let gradients = loss(&plain, step, &device).backward();
        let gradients = GradientsParams::from_grads(gradients, &plain);
        plain = optimizer.step(LR, plain, gradients);
    }
    let expected = weights(&plain);
    let start = Mutex::new(start);
    for least in [0, 1 << 20] {
        let found = run_group(2, |group| {
            let start = start.lock().expect("not poisoned").clone();
            let settings = FullyShard::new(&group).least_unit_bytes(least);
            let (sharded, mut model) = settings.wrap(start)?;
            let mut optimizer = adamw();
            for step in 0..4 {
                if step == 1 {
                    model = frozen(model);
                }
                let loss = loss(&model, step, &device);
                let gradients = sharded.gradients(loss.backward(), &model)?;
                model = optimizer.step(LR, model, gradients);
            }
            Ok(weights(&model.materialize()))
        });
        for found in found {
            assert_eq!(
                found.expect("no fault"),
                expected,
                "units from {least} bytes"
            );
        }
    }
}

#[test]
fn a_backward_pass_after_the_step_and_two_versions_in_one_loss_are_refused() {
    let start = Mutex::new(Stack::init(&Device::flex().autodiff()));
    let found = run_group(2, |group| {
        let device = Device::flex().autodiff();
        let start = start.lock().expect("not poisoned").clone();
        let (sharded, model) = FullyShard::new(&group).least_unit_bytes(0).wrap(start)?;
        let late = model.loss(1, &device);
        let gradients = sharded.gradients(model.loss(0, &device).backward(), &model)?;
        let model = adamw().step(LR, model, gradients);
        let gradients = sharded.gradients(late.backward(), &model);
        Ok(gradients
            .map(drop)
            .expect_err("the values are gone")
            .to_string())
    });
    for found in found {
        let error = found.expect("the error is the value");
        assert!(error.contains("has replaced"), "{error}");
    }
    let found = run_group(2, |group| {
        let device = Device::flex().autodiff();
        let start = start.lock().expect("not poisoned").clone();
        let (sharded, model) = FullyShard::new(&group).least_unit_bytes(0).wrap(start)?;
        let old = model.clone();
        let gradients = sharded.gradients(model.loss(0, &device).backward(), &model)?;
        let model = adamw().step(LR, model, gradients);
        let loss = model.loss(1, &device) + old.loss(1, &device);
        let gradients = sharded.gradients(loss.backward(), &model);
        Ok(gradients.map(drop).expect_err("two versions").to_string())
    });
    for found in found {
        let error = found.expect("the error is the value");
        assert!(error.contains("two versions"), "{error}");
    }
}

/// Graphs hold what a pass needs, and nothing that holds graphs: a model that only ran forward is gone
/// when it is dropped.
#[test]
fn a_model_that_only_ran_forward_is_gone_when_it_is_dropped() {
    fn check<M: Toy + 'static>() {
        let start = Mutex::new(M::init(&Device::flex().autodiff()));
        let found = run_group(2, |group| {
            let device = Device::flex().autodiff();
            let start = start.lock().expect("not poisoned").clone();
            let held = std::sync::Arc::strong_count(group.communicator());
            {
                let (_, model) = FullyShard::new(&group).least_unit_bytes(0).wrap(start)?;
                (0..3).for_each(|item| drop(model.loss(item, &device)));
            }
            // Burn tidies up when it next runs backward, and passes over graphs that another thread looks at.
            let held_now = || std::sync::Arc::strong_count(group.communicator());
            let start = Instant::now();
            while held_now() > held && start.elapsed() < Duration::from_secs(20) {
                let x = Tensor::<1>::ones([1], &device).require_grad();
                drop((x.clone() * x).backward());
            }
            Ok((held, held_now()))
        });
        for found in found {
            let (before, after) = found.expect("no fault");
            assert_eq!(before, after, "something holds the group");
        }
    }
    check::<Stack>();
    check::<crate::models::Recurrent>();
    check::<crate::models::Tied>();
}
