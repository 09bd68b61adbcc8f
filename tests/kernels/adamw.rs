//! AdamW in one pass is Burn's.

use burn::module::{Module, Param};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer, Optimizer};
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_dist::backend::KernelChoice;
use burn_dist::fused::FusedAdamW;
use proptest::prelude::*;
use tests::parameter_bits;

fn device() -> Device {
    Device::flex()
}

fn tensor(values: &[f64], dtype: DType) -> Tensor<1> {
    let data = TensorData::new(values.to_vec(), [values.len()]).convert_dtype(dtype);
    Tensor::from_data(data, (&device(), dtype))
}

fn bits(tensor: &Tensor<1>) -> Vec<u8> {
    tensor.to_data().as_bytes().to_vec()
}

fn values(tensor: &Tensor<1>) -> Vec<f64> {
    tensor.to_data().iter::<f64>().collect()
}

/// Parameter and moments after some steps, as bits.
fn run<O: Optimizer>(
    optimizer: &O,
    start: &[f64],
    gradients: &[Vec<f64>],
    dtype: DType,
) -> Tensor<1> {
    let mut parameter = tensor(start, dtype);
    let mut state = None;
    for (number, gradient) in gradients.iter().enumerate() {
        let gradient = tensor(gradient, dtype);
        let lr = 1e-2 / (number + 1) as f64;
        (parameter, state) = optimizer.step(lr, parameter, gradient, state);
    }
    parameter
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        8 => -4.0..4.0f64,
        1 => prop_oneof![Just(0.0), Just(-0.0), Just(1e-30), Just(-1e30)],
    ]
}

/// A start and three gradients of one length, empty and odd ones too.
fn arrays() -> impl Strategy<Value = (Vec<f64>, Vec<Vec<f64>>)> {
    (0..70usize).prop_flat_map(|len| {
        let array = || prop::collection::vec(number(), len);
        (array(), prop::collection::vec(array(), 3))
    })
}

fn config() -> impl Strategy<Value = AdamWConfig> {
    (
        0.5..0.99f32,
        0.9..0.9999f32,
        1e-8..1e-3f32,
        prop_oneof![Just(0.0f32), 1e-4..0.3f32],
    )
        .prop_map(|(beta_1, beta_2, epsilon, decay)| {
            AdamWConfig::new()
                .with_beta_1(beta_1)
                .with_beta_2(beta_2)
                .with_epsilon(epsilon)
                .with_weight_decay(decay)
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn wide_floats_have_the_bits_of_burns((start, gradients) in arrays(), config in config()) {
        for dtype in [DType::F32, DType::F64] {
            let right = run(&config.build(), &start, &gradients, dtype);
            let got = run(&FusedAdamW::new(&config), &start, &gradients, dtype);
            prop_assert_eq!(bits(&got), bits(&right), "{:?}", dtype);
            let twin = FusedAdamW::new(&config).kernels(KernelChoice::Twin);
            prop_assert_eq!(bits(&run(&twin, &start, &gradients, dtype)), bits(&right));
        }
    }

    #[test]
    fn narrow_floats_are_rounded_once((start, gradients) in arrays()) {
        // Where Burn rounds twelve times a step, each time by half of the last place.
        for (dtype, last) in [(DType::F16, 2f64.powi(-11)), (DType::BF16, 2f64.powi(-8))] {
            let tame = |values: &[f64]| -> Vec<f64> {
                values.iter().map(|v| if v.abs() < 1e-3 || v.abs() > 5.0 { 1.0 } else { *v }).collect()
            };
            let (start, gradients) = (tame(&start), gradients.iter().map(|g| tame(g)).collect::<Vec<_>>());
            let config = AdamWConfig::new();
            let right = run(&config.build(), &start, &gradients, DType::F32);
            let got = run(&FusedAdamW::new(&config), &start, &gradients, dtype);
            for (got, (right, start)) in values(&got).iter().zip(values(&right).iter().zip(&start)) {
                // The start, three stored parameters, and moments whose errors lr makes small.
                let bound = last * (5.0 * start.abs() + 0.2);
                prop_assert!((got - right).abs() <= bound, "{:?}: {} {}", dtype, got, right);
            }
        }
    }
}

#[test]
fn a_scale_is_a_multiplication_before_the_step() {
    let start: Vec<f64> = (0..37).map(|i| f64::from(i) / 7.0 - 2.0).collect();
    let gradient: Vec<f64> = (0..37).map(|i| f64::from(i * i % 11) - 5.0).collect();
    let config = AdamWConfig::new();
    for dtype in [DType::F32, DType::F64] {
        let gradient = tensor(&gradient, dtype).mul_scalar(0.3);
        let (right, _) = config
            .build()
            .step(0.1, tensor(&start, dtype), gradient, None);
        for choice in [KernelChoice::Fused, KernelChoice::Twin] {
            let fused = FusedAdamW::new(&config).kernels(choice);
            fused.gradient_scale().set(0.3);
            let gradient = (0..37).map(|i| f64::from(i * i % 11) - 5.0);
            let gradient = tensor(&gradient.collect::<Vec<_>>(), dtype);
            let (got, _) = fused.step(0.1, tensor(&start, dtype), gradient, None);
            assert_eq!(bits(&got), bits(&right), "{dtype:?}");
        }
    }
}

#[test]
fn what_others_hold_is_left_alone() {
    let whole = tensor(&(0..40).map(f64::from).collect::<Vec<_>>(), DType::F32);
    let before = bits(&whole);
    let config = AdamWConfig::new();
    let part = || whole.clone().slice([3..20]);
    let fused = FusedAdamW::new(&config);
    let (got, state) = fused.step(0.1, part(), part(), None);
    let kept = state.clone();
    let (right, stock) = config.build().step(0.1, part(), part(), None);
    assert_eq!(bits(&got), bits(&right));
    // A second step from a state and a parameter that are held elsewhere too.
    let (second, _) = fused.step(0.1, got.clone(), part(), state);
    let (right, _) = config.build().step(0.1, got.clone(), part(), stock);
    assert_eq!(bits(&second), bits(&right));
    let again = fused.step(0.1, got, part(), kept).0;
    assert_eq!(bits(&again), bits(&right));
    assert_eq!(bits(&whole), before);
    // Rows and columns change places: gaps between elements.
    let matrix = whole.reshape([5, 8]).transpose();
    let (got, _) = fused.step(0.1, matrix.clone(), matrix.clone(), None);
    let (right, _) = config.build().step(0.1, matrix.clone(), matrix, None);
    assert_eq!(got.to_data().as_bytes(), right.to_data().as_bytes());
}

#[derive(Module, Debug)]
struct Two {
    first: Param<Tensor<1>>,
    second: Param<Tensor<2>>,
}

#[test]
fn a_checkpoint_of_one_goes_on_in_the_other() {
    let device = device().autodiff();
    let model = Two {
        first: Param::from_data(TensorData::from([0.5f32, -1.0, 2.0]), &device),
        second: Param::from_data(TensorData::from([[0.25f32, -1.5]]), &device),
    };
    let gradients = |model: &Two, step: f64| {
        let loss =
            model.first.val().powi_scalar(2).sum() * step + model.second.val().powi_scalar(3).sum();
        GradientsParams::from_grads(loss.backward(), model)
    };
    for amsgrad in [false, true] {
        let config = AdamWConfig::new().with_amsgrad(amsgrad);
        let stock = || config.init();
        let fused = || ModuleOptimizer::from(FusedAdamW::new(&config));
        let train = |mut optimizer: ModuleOptimizer, model: Two, steps: std::ops::Range<i32>| {
            let mut model = model;
            for step in steps {
                let grads = gradients(&model, f64::from(step));
                model = optimizer.step(1e-2, model, grads);
            }
            (model, optimizer)
        };
        let (right, _) = train(stock(), model.clone(), 1..7);
        for from_stock in [true, false] {
            let (first, second) = match from_stock {
                true => (stock(), fused()),
                false => (fused(), stock()),
            };
            let (half, optimizer) = train(first, model.clone(), 1..4);
            let second = second.load_record(optimizer.to_record());
            let (got, _) = train(second, half, 4..7);
            assert_eq!(
                parameter_bits(&got),
                parameter_bits(&right),
                "amsgrad {amsgrad}"
            );
        }
    }
}
