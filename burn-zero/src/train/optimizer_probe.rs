//! Whether an optimizer is the learner's.

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{ModuleVisitor, Param, ParamId};
use burn::optim::{GradientsParams, ModuleOptimizer, OptimizerRecord};
use burn::tensor::{Bytes, DType, Tensor, TensorData};
use burn::train::{Learner, LearnerModel};
use burn_dist::{DistError, Result};

/// Steps whose learning rate may be zero, as at the start of a warm-up.
const LONGEST_PAUSE: usize = 64;

/// Sizes of the gradients that are tried: some that a limit would cut, some that it would not, and enough after a large
/// one to show how it is forgotten.
const SIZES: [f32; 8] = [1e-3, 3.0, 1e-3, 0.3, 1e-3, 1e-3, 1e-3, 1e-3];

/// Steps each trained parameter a few times, with the learner and with `optimizer`, and compares. A parameter and its
/// state are copied at a time.
pub(super) fn check_same_optimizer<M: LearnerModel>(
    learner: &Learner<M>,
    optimizer: ModuleOptimizer,
    state: Option<Bytes>,
) -> Result<()> {
    let optimizer = match state {
        Some(state) => {
            let record = OptimizerRecord::from_bytes(state).map_err(|error| {
                DistError::config(
                    format!("the learner's optimizer has a state that cannot be read: {error}"),
                    "start from a checkpoint of this version of Burn",
                )
            })?;
            optimizer.load_record(record)
        }
        None => optimizer,
    };
    let model = learner.model();
    let mut probe = Probe {
        learner,
        optimizer: &optimizer,
        model: &model,
        path: Vec::new(),
        seen: Vec::new(),
        failure: None,
    };
    model.visit(&mut probe);
    match probe.failure {
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

struct Probe<'a, M: LearnerModel> {
    learner: &'a Learner<M>,
    optimizer: &'a ModuleOptimizer,
    model: &'a M,
    path: Vec<String>,
    seen: Vec<ParamId>,
    failure: Option<DistError>,
}

impl<M: LearnerModel> Probe<'_, M> {
    fn differs<const D: usize>(&self, path: &str, param: &Param<Tensor<D>>) -> Option<DistError> {
        let start = param.base();
        let gradient = |size: f32| {
            let count = start.shape().num_elements();
            let values: Vec<f32> = (0..count)
                .map(|i| size * (0.37 * i as f32 + 0.5).sin())
                .collect();
            let data = TensorData::new(values, start.dims());
            let device = start.device().inner();
            let gradient: Tensor<D> = Tensor::from_data(data, (&device, start.dtype()));
            let mut gradients = GradientsParams::new();
            gradients.register(param.id, gradient);
            gradients
        };
        let mut theirs = self.learner.clone();
        let mut optimizer = self.optimizer.clone();
        let mut own = self.model.clone();
        for size in SIZES {
            let lr = next_rate(&mut theirs, param.id, path);
            theirs.optimizer_step(gradient(size));
            own = optimizer.step(lr, own, gradient(size));
        }
        let before = numbers(start.clone());
        let theirs = Find::new(param.id).value(&theirs.model());
        let own = Find::new(param.id).value(&own);
        let far = |a: &[f64], b: &[f64]| {
            let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
            differences.fold(0.0, f64::max)
        };
        let largest = before.iter().fold(0.0, |most: f64, v| most.max(v.abs()));
        let (moved, off) = (far(&theirs, &before), far(&own, &theirs));
        let rounding = 8.0 * epsilon(start.dtype()) * (largest + moved);
        (own.len() != theirs.len() || off > 1e-5 * moved + rounding).then(|| {
            DistError::config(
                format!(
                    "the optimizer that Zero was given is not the learner's: on {path} its steps differ by {off:.2e}, where the learner moves it by {moved:.2e}"
                ),
                "give Zero the optimizer that Learner::new got, with the same settings and groups",
            )
        })
    }
}

/// Optimizers that are the same may round otherwise.
fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => f64::from(half::bf16::EPSILON),
        DType::F16 => f64::from(half::f16::EPSILON),
        _ => f64::from(f32::EPSILON),
    }
}

/// Moves on to the first learning rate that is not zero.
fn next_rate<M: LearnerModel>(
    learner: &mut Learner<M>,
    id: ParamId,
    path: &str,
) -> ModuleLearningRate {
    for _ in 0..LONGEST_PAUSE {
        learner.lr_step();
        if learner.lr_current().lr_from_param(id, Some(path)) != 0.0 {
            break;
        }
    }
    learner.lr_current()
}

fn numbers<const D: usize>(values: Tensor<D>) -> Vec<f64> {
    values.into_data().iter::<f64>().collect()
}

impl<M: LearnerModel> ModuleVisitor for Probe<'_, M> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.failure.is_some() || self.seen.contains(&param.id) {
            return;
        }
        self.seen.push(param.id);
        if param.base().is_require_grad() {
            self.failure = self.differs(&self.path.join("."), param);
        }
    }
}

/// Reads one parameter.
struct Find {
    id: ParamId,
    found: Vec<f64>,
}

impl Find {
    fn new(id: ParamId) -> Self {
        let found = Vec::new();
        Self { id, found }
    }

    fn value<M: LearnerModel>(mut self, model: &M) -> Vec<f64> {
        model.visit(&mut self);
        self.found
    }
}

impl ModuleVisitor for Find {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.id == self.id {
            self.found = numbers(param.base());
        }
    }
}
