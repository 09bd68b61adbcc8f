//! [`GradientAudit`]: whether every gradient is reduced as often as it must be, before the first step.

use std::fmt;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor};

use crate::communicator::ReduceOp;
use crate::error::{DistError, Result};
use crate::group::ProcessGroup;
use crate::placement::{AxisPlacement, Declarations};

/// Checks a model with split layers by its own numbers: gradients that all ranks must agree on are compared,
/// and each parameter's gradient is held against what the loss does when the parameter moves along it.
///
/// A reduction that is missing (a plain norm where activations are split along the sequence) makes ranks
/// differ; one that is there twice (a [`SequenceParallel`](super::SequenceParallel) norm where activations
/// are whole) makes the loss move too little. Costs a forward and a backward pass, and two forward passes
/// or a few more for each parameter: once, before training, on a small batch.
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

/// What an audit found of each trained parameter, in visiting order.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditReport {
    /// The parameters.
    pub parameters: Vec<AuditedParameter>,
}

/// One parameter in an [`AuditReport`].
#[derive(Debug, Clone, PartialEq)]
pub struct AuditedParameter {
    /// Path in the model.
    pub name: String,
    /// Shape on this rank.
    pub shape: Vec<usize>,
    /// How it lies; nothing for one that no layer speaks of: whole on every rank.
    pub placements: Vec<AxisPlacement>,
    /// The reductions of its gradient, in order.
    pub reductions: Vec<String>,
    /// How far the loss moved along the gradient, over how far the gradient says; 1 is right. `None` if the
    /// gradient is too small to tell.
    pub ratio: Option<f64>,
}

/// How far off a ratio may be: differences of a 32-bit loss are rough, a missing or doubled reduction of two
/// ranks is off by half.
const TOLERANCE: f64 = 0.25;

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
    /// must give the same number each time and on each rank: audit without dropout. Collective.
    ///
    /// # Errors
    /// [`DistError::Config`] naming the parameter and what is missing or doubled; for a data-parallel group
    /// whose members hold other parts; for a loss that changes; else what the group met.
    pub fn run<M: Module>(
        &self,
        model: &M,
        loss: impl Fn(&M) -> Result<Tensor<1>>,
    ) -> Result<AuditReport> {
        let place = format!("rank {}, group {}", self.group.rank(), self.group.name());
        let mut parameters = self.list(model)?;
        let first = loss(model)?;
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
        for (listed, (id, gradient, value_norm)) in parameters.iter_mut().zip(read.found) {
            // A parameter that stands twice is audited once.
            let Some(gradient) = gradient else { continue };
            let is_part = listed.placements.iter().any(AxisPlacement::is_shard);
            if !is_part {
                self.compare(&place, listed, &gradient)?;
            }
            let squares = gradient.iter().map(|g| g * g).sum::<f64>();
            // All ranks decide from the same numbers how far to go.
            let op = if is_part {
                ReduceOp::Sum
            } else {
                ReduceOp::Max
            };
            let sums = self
                .group
                .all_reduce_values(vec![squares, value_norm * value_norm], op)?;
            let (squares, values) = (sums[0], sums[1]);
            let norm = squares.sqrt();
            let moved = |step: f64| -> Result<f64> {
                let moved = model.clone().map(&mut Move {
                    id,
                    by: step / norm,
                    gradients: &gradients,
                });
                Ok(number(&loss(&moved)?))
            };
            listed.ratio = ratio(at_rest, norm, values.sqrt(), moved)?;
            if let Some(ratio) = listed.ratio.filter(|r| (r - 1.0).abs() > TOLERANCE) {
                return Err(self.wrong(&place, listed, ratio));
            }
        }
        Ok(AuditReport { parameters })
    }

    /// What is declared, without numbers.
    fn list<M: Module>(&self, model: &M) -> Result<Vec<AuditedParameter>> {
        let mut list = List {
            declarations: Declarations::read(model),
            path: Vec::new(),
            data: self.data.as_ref(),
            listed: Vec::new(),
            failure: None,
        };
        model.visit(&mut list);
        match list.failure {
            Some(failure) => Err(failure),
            None => Ok(list.listed),
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

    fn wrong(&self, place: &str, listed: &AuditedParameter, ratio: f64) -> DistError {
        let times = 1.0 / ratio;
        let problem = match times > 1.0 {
            true => format!("is reduced once too often: it is {times:.2} times what the loss does"),
            false => format!("lacks a reduction: it is {times:.2} times what the loss does"),
        };
        DistError::config(
            format!(
                "{place}: the gradient of {} {:?} {problem}; declared: {}",
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

/// The loss's change over the gradient's, from steps both ways; `None` if no step of a size that means
/// something changes the loss by more than its rounding.
fn ratio(
    at_rest: f64,
    norm: f64,
    values: f64,
    moved: impl Fn(f64) -> Result<f64>,
) -> Result<Option<f64>> {
    const ROUNDING: f64 = 2e-5;
    let least = ROUNDING * at_rest.abs().max(1e-3);
    let mut best: Option<f64> = None;
    let mut step = (0.02 * at_rest.abs().max(1e-3) / norm).min(0.1 * values.max(1e-2));
    for _ in 0..4 {
        let predicted = 2.0 * step * norm;
        if !(predicted.is_finite() && predicted > 20.0 * least) {
            break;
        }
        let found = (moved(step)? - moved(-step)?) / predicted;
        // The loss bends: a smaller step may be the better one, or the rougher.
        if best.is_none_or(|best| (found - 1.0).abs() < (best - 1.0).abs()) {
            best = Some(found);
        }
        if best.is_some_and(|best| (best - 1.0).abs() < TOLERANCE / 2.0) {
            break;
        }
        step /= 3.0;
    }
    Ok(best)
}

struct List<'a> {
    declarations: Declarations,
    path: Vec<String>,
    data: Option<&'a ProcessGroup>,
    listed: Vec<AuditedParameter>,
    failure: Option<DistError>,
}

impl List<'_> {
    fn entry(&self, shape: Vec<usize>) -> Result<AuditedParameter> {
        let name = self.path.join(".");
        let placements = self.declarations.of(&name)?;
        let mut reductions = Vec::new();
        for placement in &placements {
            if let Some(op) = placement.reduction() {
                reductions.push(format!(
                    "{} over {} {:?} by its layer",
                    op.name(),
                    placement.axis,
                    placement.ranks
                ));
            }
            let shared = self.data.map(|data| placement.shared_with(data.ranks()));
            if let Some(shared) = shared.filter(|shared| placement.is_shard() && shared.len() > 1) {
                return Err(DistError::config(
                    format!(
                        "parameter {name} is {placement}, and ranks {shared:?} of these average gradients"
                    ),
                    "take a data-parallel group whose members differ on another axis",
                ));
            }
        }
        if let Some(data) = self.data.filter(|data| data.size() > 1) {
            let over = format!("{} {:?}", data.name(), data.ranks());
            reductions.push(format!("mean over {over} by data parallelism"));
        }
        Ok(AuditedParameter {
            name,
            shape,
            placements,
            reductions,
            ratio: None,
        })
    }
}

impl ModuleVisitor for List<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_require_grad() {
            return;
        }
        match self.entry(param.base().dims().to_vec()) {
            Ok(entry) => self.listed.push(entry),
            Err(failure) => {
                self.failure.get_or_insert(failure);
            }
        }
    }
}

/// Of each trained parameter: its gradient, and the norm of its values.
struct ReadGradients<'a> {
    gradients: &'a GradientsParams,
    found: Vec<(ParamId, Option<Vec<f64>>, f64)>,
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

/// Moves one parameter along its gradient.
struct Move<'a> {
    id: ParamId,
    by: f64,
    gradients: &'a GradientsParams,
}

impl ModuleMapper for Move<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let gradient = self.gradients.get::<D>(param.id);
        let Some(gradient) = gradient.filter(|_| param.id == self.id) else {
            return param;
        };
        let by = self.by;
        param.map(|tensor| {
            let (device, dtype) = (tensor.device(), tensor.dtype());
            let moved = tensor.inner().cast(DType::F64) + gradient.cast(DType::F64) * by;
            Tensor::from_data(moved.cast(dtype).into_data(), (&device, dtype)).require_grad()
        })
    }
}

impl AuditedParameter {
    fn describe(&self) -> String {
        let placements = self.placements.iter();
        let placements: Vec<String> = placements.map(ToString::to_string).collect();
        match placements.is_empty() {
            true => "whole on every rank".into(),
            false => placements.join("; "),
        }
    }
}

impl fmt::Display for AuditReport {
    /// A line for each parameter: placement, reductions, ratio.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, parameter) in self.parameters.iter().enumerate() {
            if number > 0 {
                writeln!(f)?;
            }
            let ratio = match parameter.ratio {
                Some(ratio) => format!("{ratio:.3}"),
                None => "-".into(),
            };
            write!(
                f,
                "{ratio:>6}  {} {:?}: {}",
                parameter.name,
                parameter.shape,
                parameter.describe()
            )?;
            for reduction in &parameter.reductions {
                write!(f, "; {reduction}")?;
            }
        }
        Ok(())
    }
}
