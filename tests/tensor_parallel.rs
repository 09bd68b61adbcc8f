//! Layers split over ranks against their dense ones: losses, gradients, weights, traffic, memory.

#[path = "tensor_parallel/audit.rs"]
mod audit;
#[path = "tensor_parallel/layers.rs"]
mod layers;
#[path = "tensor_parallel/loss.rs"]
mod loss;
#[path = "tensor_parallel/misuse.rs"]
mod misuse;
#[path = "tensor_parallel/mixes.rs"]
mod mixes;
#[path = "tensor_parallel/randomness.rs"]
mod randomness;
#[path = "tensor_parallel/traffic.rs"]
mod traffic;
#[path = "tensor_parallel/twins.rs"]
mod twins;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_dist::Result;
use burn_dist::tensor_parallel::TensorParallel;
use tests::run_group;

/// Optimizer steps of every comparison.
const STEPS: usize = 20;

/// How a group is used.
#[derive(Debug, Clone, Copy)]
struct Mode {
    ranks: usize,
    sequence: bool,
    regather: bool,
    overlap: bool,
}

/// All that a layer can be asked for on 1, 2 and 4 ranks.
fn modes() -> Vec<Mode> {
    let mode = |ranks, sequence, regather, overlap| Mode {
        ranks,
        sequence,
        regather,
        overlap,
    };
    vec![
        mode(1, true, true, true),
        mode(2, false, false, true),
        mode(2, false, false, false),
        mode(2, true, false, true),
        mode(2, true, true, true),
        mode(2, true, true, false),
        mode(4, false, false, true),
        mode(4, true, true, true),
    ]
}

impl Mode {
    fn parallel(self, group: &burn_dist::ProcessGroup) -> TensorParallel {
        TensorParallel::new(group)
            .sequence_parallel(self.sequence)
            .regather(self.regather)
            .overlap(self.overlap)
    }
}

/// Fixed values in -1..1 that look like nothing in particular.
fn fixed<const D: usize>(shape: [usize; D], seed: u64, dtype: DType, device: &Device) -> Tensor<D> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let values: Vec<f64> = (0..shape.iter().product())
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f64 / (1u64 << 23) as f64 - 1.0
        })
        .collect();
    Tensor::from_data(TensorData::new(values, shape), (device, dtype))
}

struct Cast(DType);

impl ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let dtype = self.0;
        let trained = param.is_require_grad();
        param.map(|tensor| {
            let device = tensor.device();
            let data = tensor.into_data().convert_dtype(dtype);
            Tensor::from_data(data, (&device, dtype)).set_require_grad(trained)
        })
    }
}

/// The module with leaves of its own, in another element type.
fn cast<M: Module>(module: &M, dtype: DType) -> M {
    module.clone().map(&mut Cast(dtype))
}

struct Settle(u64);

impl ModuleMapper for Settle {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.0 += 1;
        let seed = self.0;
        param.map(|tensor| {
            let (device, dtype) = (tensor.device(), tensor.dtype());
            let is_scale = tensor.clone().equal_elem(1.0).all().into_scalar::<bool>();
            let settled = fixed(tensor.dims(), seed, dtype, &device.clone().inner());
            let settled = settled
                .mul_scalar(0.4)
                .add_scalar(f64::from(u8::from(is_scale)));
            Tensor::from_data(settled.into_data(), (&device, dtype)).require_grad()
        })
    }
}

/// The module with the same parameters in every run: Burn's generator serves all tests at once.
fn settled<M: Module>(module: &M) -> M {
    module.clone().map(&mut Settle(100))
}

/// Every parameter's name and values.
#[derive(Default)]
struct Values {
    path: Vec<String>,
    found: Vec<(String, Vec<f64>)>,
}

impl ModuleVisitor for Values {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let values = param.val().into_data().iter::<f64>().collect();
        self.found.push((self.path.join("."), values));
    }
}

fn values<M: Module>(module: &M) -> Vec<(String, Vec<f64>)> {
    let mut visitor = Values::default();
    module.visit(&mut visitor);
    visitor.found
}

/// Puts gradients in the place of values, so that a layer puts its parts together.
struct InPlace<'a>(&'a GradientsParams);

impl ModuleMapper for InPlace<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let gradient = self.0.get::<D>(param.id);
        param.map(|tensor| {
            let device = tensor.device();
            let gradient = gradient.unwrap_or_else(|| tensor.clone().inner().zeros_like());
            let dtype = gradient.dtype();
            Tensor::from_data(gradient.into_data(), (&device, dtype)).require_grad()
        })
    }
}

/// What a training run gives: losses, the first gradients, the weights at its end; of a dense module.
struct Outcome {
    losses: Vec<f64>,
    gradients: Vec<(String, Vec<f64>)>,
    weights: Vec<(String, Vec<f64>)>,
}

/// Trains; `to_dense` puts a module together.
fn train<M: Module, D: Module>(
    mut module: M,
    loss: impl Fn(&M) -> Result<Tensor<1>>,
    to_dense: impl Fn(&M) -> Result<D>,
) -> Result<Outcome> {
    let mut optimizer = AdamWConfig::new().init();
    let (mut losses, mut first) = (Vec::new(), None);
    for _ in 0..STEPS {
        let loss = loss(&module)?;
        losses.push(loss.clone().into_data().iter::<f64>().next().expect("one"));
        let gradients = GradientsParams::from_grads(loss.backward(), &module);
        if first.is_none() {
            let placed = module.clone().map(&mut InPlace(&gradients));
            first = Some(values(&to_dense(&placed)?));
        }
        module = optimizer.step(1e-3, module, gradients);
    }
    Ok(Outcome {
        losses,
        gradients: first.expect("a step"),
        weights: values(&to_dense(&module)?),
    })
}

/// The largest difference over the largest value.
fn relative(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let largest = b.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    let pairs = a.iter().zip(b);
    let difference = pairs.fold(0.0f64, |m, (a, b)| m.max((a - b).abs()));
    assert!(difference.is_finite(), "not a number");
    match difference == 0.0 {
        true => 0.0,
        false => difference / largest.max(1e-3),
    }
}

fn close(what: &str, got: &Outcome, dense: &Outcome, bound: f64) {
    let error = relative(&got.losses, &dense.losses);
    assert!(error <= bound, "{what}: losses differ by {error:e}");
    for (name, got, dense) in [
        ("gradient", &got.gradients, &dense.gradients),
        ("weight", &got.weights, &dense.weights),
    ] {
        assert_eq!(got.len(), dense.len(), "{what}: {name}s");
        for ((path, got), (dense_path, dense)) in got.iter().zip(dense) {
            assert_eq!(path, dense_path);
            let error = relative(got, dense);
            assert!(
                error <= bound,
                "{what}: {name} of {path} differs by {error:e}"
            );
        }
    }
}

/// Compares a dense module with its split form on all modes and in both element types.
fn compare<D: Module + Sync, P: Module>(
    dense: &D,
    dense_loss: impl Fn(&D, DType) -> Tensor<1> + Sync,
    split: impl Fn(&D, &TensorParallel) -> Result<P> + Send + Sync,
    loss: impl Fn(&P, DType) -> Result<Tensor<1>> + Send + Sync,
    to_dense: impl Fn(&P) -> Result<D> + Send + Sync,
) {
    let dense = &settled(dense);
    for (dtype, bound) in [(DType::F32, 1e-5), (DType::F64, 1e-12)] {
        let expected = train(
            cast(dense, dtype),
            |dense| Ok(dense_loss(dense, dtype)),
            |dense| Ok(dense.clone()),
        )
        .expect("one rank");
        for mode in modes() {
            let results = run_group(mode.ranks, |group| {
                let parallel = mode.parallel(&group);
                let module = split(&cast(dense, dtype), &parallel)?;
                train(module, |module| loss(module, dtype), &to_dense)
            });
            for (rank, result) in results.into_iter().enumerate() {
                let what = format!("{mode:?} {dtype:?} rank {rank}");
                close(&what, &result.expect("no fault"), &expected, bound);
            }
        }
    }
}
