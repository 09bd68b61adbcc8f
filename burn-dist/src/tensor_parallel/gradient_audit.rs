//! [`GradientAudit`]: whether every gradient is reduced as often as it must be, before the first step.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor, TensorData};

use super::audited_parameters::declared;
use super::{AuditReport, AuditedParameter};

use crate::communicator::ReduceOp;
use crate::error::{DistError, Result};
use crate::group::ProcessGroup;
use crate::placement::AxisPlacement;

/// Checks a model with split layers by its own numbers: gradients that all ranks must agree on are compared,
/// and each parameter's gradient is held against what the loss does when the parameter moves along it.
///
/// A reduction that is missing (a plain norm where activations are split along the sequence) makes ranks
/// differ; one that is there twice (a [`SequenceParallel`](super::SequenceParallel) norm where activations
/// are whole) makes the loss move too little. Costs about ten forward and backward passes for each parameter:
/// once, before training, on a small batch.
///
/// ```no_run
/// # use burn::tensor::Tensor;
/// # use burn_dist::{ProcessGroup, Result, tensor_parallel::{ColumnParallelLinear, GradientAudit}};
/// # fn example(model: ColumnParallelLinear, batch: Tensor<3>, tp: ProcessGroup) -> Result<()> {
/// let report = GradientAudit::new(&tp).run(&model, |model| Ok(model.forward(batch.clone())?.mean()))?;
/// println!("{report}");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct GradientAudit {
    group: ProcessGroup,
    data: Option<ProcessGroup>,
}

/// How far the loss may move otherwise than a gradient says, relative to the gradient: differences of a loss
/// in 32 bits are rough by a hundredth of this.
const TOLERANCE: f64 = 0.05;

/// Directions of random signs, besides the gradient's own: a gradient that lacks a part is nearly orthogonal
/// to that part, so that moving along itself does not show it.
const DIRECTIONS: u64 = 4;

impl GradientAudit {
    /// Over the ranks that layers are split over.
    pub fn new(group: &ProcessGroup) -> Self {
        Self {
            group: group.clone(),
            data: None,
        }
    }

    /// And a data-parallel group, over which gradients will be averaged.
    pub fn data_parallel(mut self, group: &ProcessGroup) -> Self {
        self.data = Some(group.clone());
        self
    }

    /// Audits a model that is not wrapped yet, on a batch that is the same on all ranks of the group. `loss`
    /// must give the same number each time and on each rank: audit without dropout, and the 32-bit copy of a
    /// 16-bit model. Collective.
    ///
    /// # Errors
    /// [`DistError::Config`] naming the parameter and what is missing or doubled; for a data-parallel group
    /// whose members hold other parts; for a loss that changes, gradients that are not finite, or if no
    /// gradient is large enough to tell; else what the group met.
    pub fn run<M: Module>(
        &self,
        model: &M,
        loss: impl Fn(&M) -> Result<Tensor<1>>,
    ) -> Result<AuditReport> {
        let place = format!("rank {}, group {}", self.group.rank(), self.group.name());
        let mut parameters = declared(model, self.data.as_ref())?;
        let first = loss(model)?;
        if matches!(first.dtype(), DType::F16 | DType::BF16) {
            return Err(DistError::config(
                format!(
                    "{place}: a loss of {:?} is too rough to check gradients by",
                    first.dtype()
                ),
                "audit the model in f32, before it is cast",
            ));
        }
        let rounding = if first.dtype() == DType::F64 {
            1e-15
        } else {
            3e-7
        };
        let at_rest = number(&first);
        let again = number(&loss(model)?);
        let all = self.group.all_gather_values(vec![at_rest])?;
        if at_rest.to_bits() != again.to_bits() || all.iter().any(|other| other[0] != at_rest) {
            return Err(DistError::config(
                format!(
                    "{place}: the loss is {at_rest}, then {again}, and on the ranks of the group {all:?}"
                ),
                "audit without dropout, on one batch that all ranks of the group see",
            ));
        }
        let gradients = GradientsParams::from_grads(first.backward(), model);
        let mut read = ReadGradients {
            gradients: &gradients,
            found: Vec::new(),
        };
        model.visit(&mut read);
        self.agree_on_used(&place, &parameters, &read.found)?;
        for (listed, (id, gradient, value_norm)) in parameters.iter_mut().zip(read.found) {
            // A parameter that stands twice is audited once.
            let Some(gradient) = gradient else { continue };
            let is_part = listed.placements.iter().any(AxisPlacement::is_shard);
            if !is_part {
                self.compare(&place, listed, &gradient)?;
            }
            // All ranks decide from the same numbers how far to go.
            let op = if is_part {
                ReduceOp::Sum
            } else {
                ReduceOp::Max
            };
            let total = |values: Vec<f64>| self.group.all_reduce_values(values, op);
            let squares = gradient.iter().map(|g| g * g).sum::<f64>();
            let sums = total(vec![
                squares,
                value_norm * value_norm,
                gradient.len() as f64,
            ])?;
            let norm = sums[0].sqrt();
            if !norm.is_finite() {
                return Err(DistError::config(
                    format!(
                        "{place}: the gradient of {} {:?} is not finite",
                        listed.name, listed.shape
                    ),
                    "look at what its layer computes on this batch",
                ));
            }
            let size = (sums[1] / sums[2]).sqrt();
            for number_of_direction in 0..=DIRECTIONS {
                // Different parts move in different directions; what is whole moves alike on all ranks.
                let seed = number_of_direction * 1009
                    + if is_part {
                        self.group.index() as u64
                    } else {
                        0
                    };
                let direction: Vec<f64> = match number_of_direction {
                    0 => gradient.iter().map(|g| g / norm * sums[2].sqrt()).collect(),
                    _ => signs(seed, gradient.len()),
                };
                let along = gradient
                    .iter()
                    .zip(&direction)
                    .map(|(g, d)| g * d)
                    .sum::<f64>();
                let along = total(vec![along])?[0];
                let probe = |step: f64| -> Result<f64> {
                    let moved = model.clone().map(&mut Move {
                        id,
                        step,
                        direction: &direction,
                    });
                    let loss = loss(&moved)?;
                    let own = number(&loss);
                    // Burn lets go of a graph when a backward pass has gone through it.
                    drop(loss.backward());
                    Ok(self.group.all_gather_values(vec![own])?[0][0])
                };
                // A gradient along its own direction is as long as it is: the others are measured by that.
                let slope = norm
                    * if number_of_direction == 0 {
                        sums[2].sqrt()
                    } else {
                        1.0
                    };
                let error = error(at_rest, along, slope, size, rounding, probe)?;
                if let Some(error) = error {
                    listed.error = Some(listed.error.map_or(error, |worst: f64| worst.max(error)));
                }
                if let Some(error) = error.filter(|error| *error > TOLERANCE) {
                    return Err(self.wrong(&place, listed, error));
                }
            }
        }
        if parameters.iter().all(|parameter| parameter.error.is_none()) {
            return Err(DistError::config(
                format!("{place}: no gradient moves a loss of {at_rest} by more than its rounding"),
                "audit with a loss without a large constant, in f64 if need be",
            ));
        }
        Ok(AuditReport { parameters })
    }

    /// A gradient that some ranks have and some do not would make them go different ways.
    fn agree_on_used(
        &self,
        place: &str,
        parameters: &[AuditedParameter],
        found: &[Found],
    ) -> Result<()> {
        let used: Vec<u8> = found
            .iter()
            .map(|found| u8::from(found.1.is_some()))
            .collect();
        let [least, most] = [ReduceOp::Min, ReduceOp::Max];
        let least = self.group.all_reduce_values(used.clone(), least)?;
        let most = self.group.all_reduce_values(used, most)?;
        let differs = least
            .iter()
            .zip(&most)
            .position(|(least, most)| least != most);
        match differs {
            None => Ok(()),
            Some(number) => Err(DistError::config(
                format!(
                    "{place}: parameter {} has a gradient on some ranks and none on others",
                    parameters[number].name
                ),
                "run the same layers on every rank of the group",
            )),
        }
    }

    /// All ranks must have the same gradient of what is whole.
    fn compare(&self, place: &str, listed: &AuditedParameter, gradient: &[f64]) -> Result<()> {
        let all = self.group.all_gather_values(gradient.to_vec())?;
        let largest = all.iter().flatten().fold(0.0f64, |m, g| m.max(g.abs()));
        let differ = |other: &&Vec<f64>| {
            let pairs = other.iter().zip(&all[0]);
            pairs.fold(0.0f64, |m, (a, b)| m.max((a - b).abs())) > 1e-3 * largest
        };
        let Some(index) = all.iter().position(|other| differ(&other)) else {
            return Ok(());
        };
        Err(DistError::config(
            format!(
                "{place}: a reduction is missing: parameter {} is whole on every rank, but ranks {} and {} have different gradients of it",
                listed.name,
                self.group.ranks()[0],
                self.group.ranks()[index]
            ),
            "its layer sees other tokens on each rank: put it into SequenceParallel, or join the sequence before it",
        ))
    }

    fn wrong(&self, place: &str, listed: &AuditedParameter, error: f64) -> DistError {
        DistError::config(
            format!(
                "{place}: the gradient of {} {:?} lacks a reduction, or is reduced once too often: the loss moves otherwise by {error:.2} of it; declared: {}",
                listed.name,
                listed.shape,
                listed.describe()
            ),
            "compare what its layer gets with what it was made for: activations that are whole, split along the sequence, or along features",
        )
    }
}

fn number(loss: &Tensor<1>) -> f64 {
    let values = loss.clone().inner().into_data();
    values.iter::<f64>().next().unwrap_or(f64::NAN)
}

/// Signs that look like nothing in particular.
fn signs(seed: u64, len: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        if state >> 63 == 0 { 1.0 } else { -1.0 }
    };
    (0..len).map(|_| next()).collect()
}

/// How far the loss moves otherwise than by `along` per unit of a step, over `slope`, from steps both ways;
/// `None` if no step of a size that means something moves it by more than its rounding. `size` is that of
/// the parameter's elements.
fn error(
    at_rest: f64,
    along: f64,
    slope: f64,
    size: f64,
    rounding: f64,
    probe: impl Fn(f64) -> Result<f64>,
) -> Result<Option<f64>> {
    let floor = rounding * at_rest.abs().max(1e-30);
    let mut best: Option<f64> = None;
    let mut step = (0.01 * at_rest.abs() / slope).min(0.1 * size.max(0.1));
    for _ in 0..4 {
        // Both losses are rounded: a step must show a hundred times that.
        let seen = 2.0 * step * slope;
        if !(seen.is_finite() && seen > 100.0 * floor) {
            break;
        }
        let found = (probe(step)? - probe(-step)?) / (2.0 * step);
        let error = (found - along).abs() / slope;
        // The loss bends: a smaller step may be the better one, or the rougher.
        best = Some(best.map_or(error, |best| error.min(best)));
        if error < TOLERANCE / 2.0 {
            break;
        }
        step /= 4.0;
    }
    Ok(best)
}

/// A parameter's gradient, and the norm of its values.
type Found = (ParamId, Option<Vec<f64>>, f64);

/// Of each trained parameter.
struct ReadGradients<'a> {
    gradients: &'a GradientsParams,
    found: Vec<Found>,
}

impl ModuleVisitor for ReadGradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_require_grad() {
            return;
        }
        let is_known = self.found.iter().any(|found| found.0 == param.id);
        let gradient = self.gradients.get::<D>(param.id).filter(|_| !is_known);
        let gradient = gradient.map(|gradient| gradient.into_data().iter().collect());
        let values = param.base().inner().into_data();
        let squares: f64 = values.iter::<f64>().map(|value| value * value).sum();
        self.found.push((param.id, gradient, squares.sqrt()));
    }
}

/// Moves one parameter.
struct Move<'a> {
    id: ParamId,
    step: f64,
    direction: &'a [f64],
}

impl ModuleMapper for Move<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if param.id != self.id {
            return param;
        }
        let (step, direction) = (self.step, self.direction);
        param.map(|tensor| {
            let (device, dtype, shape) = (tensor.device(), tensor.dtype(), tensor.dims());
            let values = tensor.inner().into_data();
            let values = values.iter::<f64>().zip(direction);
            let moved: Vec<f64> = values.map(|(value, d)| value + step * d).collect();
            let data = TensorData::new(moved, shape).convert_dtype(dtype);
            Tensor::from_data(data, (&device, dtype)).require_grad()
        })
    }
}
