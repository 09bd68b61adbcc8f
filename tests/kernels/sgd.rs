//! Gradient descent with momentum in one pass is Burn's.

use burn::module::{Module, Param};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, ModuleOptimizer, Optimizer, SgdConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_dist::backend::KernelChoice;
use burn_dist::fused::FusedSgd;
use proptest::prelude::*;
use tests::parameter_bits;

fn tensor(values: &[f64], dtype: DType) -> Tensor<1> {
    let data = TensorData::new(values.to_vec(), [values.len()]).convert_dtype(dtype);
    Tensor::from_data(data, (&Device::flex(), dtype))
}

/// The parameter after some steps.
fn run<O: Optimizer>(
    optimizer: &O,
    start: &[f64],
    gradients: &[Vec<f64>],
    dtype: DType,
) -> TensorData {
    let (mut parameter, mut state) = (tensor(start, dtype), None);
    for (number, gradient) in gradients.iter().enumerate() {
        let lr = 1e-2 / (number + 1) as f64;
        let gradient = tensor(gradient, dtype);
        (parameter, state) = optimizer.step(lr, parameter, gradient, state);
    }
    parameter.into_data()
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![8 => -4.0..4.0f64, 1 => prop_oneof![Just(0.0), Just(-0.0), Just(1e-30)]]
}

fn arrays() -> impl Strategy<Value = (Vec<f64>, Vec<Vec<f64>>)> {
    (0..70usize).prop_flat_map(|len| {
        let array = || prop::collection::vec(number(), len);
        (array(), prop::collection::vec(array(), 3))
    })
}

fn config() -> impl Strategy<Value = SgdConfig> {
    let momentum = (0.0..1.0f64, 0.0..1.0f64, any::<bool>());
    (prop::option::of(momentum), prop::option::of(0.0..0.5f32)).prop_map(|(momentum, penalty)| {
        let momentum = momentum.map(|(momentum, dampening, nesterov)| {
            let config = MomentumConfig::new().with_momentum(momentum);
            config.with_dampening(dampening).with_nesterov(nesterov)
        });
        let decay = penalty.map(WeightDecayConfig::new);
        SgdConfig::new()
            .with_momentum(momentum)
            .with_weight_decay(decay)
    })
}

proptest! {
    #[test]
    fn it_has_the_bits_of_burns((start, gradients) in arrays(), config in config()) {
        for dtype in [DType::F32, DType::F64] {
            let right = run(&config.build(), &start, &gradients, dtype);
            for choice in [KernelChoice::Fused, KernelChoice::Twin] {
                let fused = FusedSgd::new(&config).kernels(choice);
                let got = run(&fused, &start, &gradients, dtype);
                prop_assert_eq!(got.as_bytes(), right.as_bytes(), "{:?} {:?}", dtype, choice);
            }
        }
    }
}

#[derive(Module, Debug)]
struct Two {
    first: Param<Tensor<1>>,
    second: Param<Tensor<2>>,
}

#[test]
fn a_checkpoint_of_one_goes_on_in_the_other() {
    let device = Device::flex().autodiff();
    let model = Two {
        first: Param::from_data(TensorData::from([0.5f32, -1.0, 2.0]), &device),
        second: Param::from_data(TensorData::from([[0.25f32, -1.5]]), &device),
    };
    for momentum in [None, Some(MomentumConfig::new())] {
        let config = SgdConfig::new().with_momentum(momentum);
        let stock = || config.init();
        let fused = || ModuleOptimizer::from(FusedSgd::new(&config));
        let train =
            |mut optimizer: ModuleOptimizer, mut model: Two, steps: std::ops::Range<i32>| {
                for step in steps {
                    let loss = model.first.val().powi_scalar(2).sum() * f64::from(step)
                        + model.second.val().powi_scalar(3).sum();
                    let grads = GradientsParams::from_grads(loss.backward(), &model);
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
            assert_eq!(parameter_bits(&got), parameter_bits(&right), "{from_stock}");
        }
    }
}
