//! [`ParameterSpec`] and [`ParameterTable`]: what a module holds, without its values.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, DType, Device, Int, Tensor};

use super::replica;
use crate::error::{DistError, Result};
use crate::group::ProcessGroup;
use crate::placement::{AxisPlacement, Declarations};

/// One parameter or buffer of a module.
#[derive(Debug, Clone, PartialEq)]
pub struct ParameterSpec {
    /// Path in the module, as `blocks.0.norm.gamma`.
    pub name: String,
    /// Burn's identifier; it differs between processes.
    pub id: ParamId,
    /// Shape.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
    /// Where it lies, with its autodiff settings.
    pub device: Device,
    /// Whether the optimizer may change it.
    pub trainable: bool,
    /// Whether it belongs to a recurrent layer of Burn, which reads it at every time step: its gradient
    /// is complete only when the backward pass has come to the first one.
    pub recurrent: bool,
    /// How it lies over the axes of which its layer says something; whole on all others.
    pub placements: Vec<AxisPlacement>,
}

impl ParameterSpec {
    /// Number of elements.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// What replicas must have in common, on one line.
    pub fn describe(&self) -> String {
        let kind = if self.trainable { "" } else { ", not trained" };
        let mut text = format!("{} {:?} {:?}{kind}", self.name, self.shape, self.dtype);
        for placement in &self.placements {
            // Not the ranks: replicas have others.
            text += &format!(", {} over {}", placement.parameter, placement.axis);
        }
        text
    }
}

/// What Burn's recurrent layers (Rnn, Gru, Lstm and their bidirectional forms) are made of.
const GATE: &str = "Struct:GateController";

/// A module's parameters in visiting order; a shared parameter stands once, where it comes first.
#[derive(Debug, Clone, Default)]
pub struct ParameterTable {
    specs: Vec<ParameterSpec>,
}

/// Reads a [`ParameterTable`].
#[derive(Default)]
struct Reader {
    specs: Vec<ParameterSpec>,
    path: Vec<String>,
    declarations: Declarations,
    /// Paths under which a parameter stands again.
    again: Vec<(usize, String)>,
    /// How many of the path's containers are the gates of recurrent layers.
    gates: usize,
    last: Option<usize>,
    refused: Option<String>,
    lazy: bool,
}

impl ParameterTable {
    /// Reads a module's table; lazy parameters are initialised.
    ///
    /// # Errors
    /// [`DistError::Config`] if a trainable parameter already carries a reparameterization: a
    /// parameter carries only one, and ours would be lost without a word.
    pub fn of<M: Module>(module: &M) -> Result<Self> {
        Self::read(module, false)
    }

    /// As [`of`](Self::of), but lazy parameters stay lazy: they are listed in their device's element
    /// type.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn of_lazy<M: Module>(module: &M) -> Result<Self> {
        Self::read(module, true)
    }

    fn read<M: Module>(module: &M, lazy: bool) -> Result<Self> {
        let mut reader = Reader {
            lazy,
            ..Reader::default()
        };
        module.visit(&mut reader);
        if let Some(problem) = reader.refused.take() {
            return Err(DistError::config(
                problem,
                "wrap a model once, before other reparameterizations, or materialize() it first",
            ));
        }
        reader.place()?;
        Ok(Self {
            specs: reader.specs,
        })
    }

    /// The parameters in visiting order.
    pub fn specs(&self) -> &[ParameterSpec] {
        &self.specs
    }

    /// Checks that all members of a group have the same names, shapes and element types, in the same
    /// order. Collective: a gather of hashes.
    ///
    /// # Errors
    /// [`DistError::Replica`] naming the first parameter that differs; else what the group met.
    /// [`DistError::Config`] if members of the group hold other parts of a parameter: reducing over them
    /// would mix elements that do not belong together.
    pub fn verify(&self, group: &ProcessGroup) -> Result<()> {
        self.check_parts(group)?;
        replica::verify(self, group)
    }

    fn check_parts(&self, group: &ProcessGroup) -> Result<()> {
        for spec in &self.specs {
            let parts = spec
                .placements
                .iter()
                .filter(|placement| placement.is_shard());
            for placement in parts {
                let shared = placement.shared_with(group.ranks());
                if shared.len() > 1 {
                    return Err(DistError::config(
                        format!(
                            "rank {}: parameter {} is {placement}, and ranks {shared:?} of these are in group {} {:?}, over which its gradient would be reduced",
                            group.rank(),
                            spec.name,
                            group.name(),
                            group.ranks()
                        ),
                        format!(
                            "take a data-parallel group, whose members differ on another axis than {}",
                            placement.axis
                        ),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Position of a parameter, by Burn's identifier.
    pub fn position(&self, id: ParamId) -> Option<usize> {
        self.specs.iter().position(|spec| spec.id == id)
    }
}

impl Reader {
    /// Gives each parameter what its layers declared. One that several layers share lies alike in all.
    fn place(&mut self) -> Result<()> {
        let again = self.again.iter().map(|(_, path)| path.as_str());
        let paths = self
            .specs
            .iter()
            .map(|spec| spec.name.as_str())
            .chain(again);
        self.declarations.check(paths)?;
        for spec in &mut self.specs {
            spec.placements = self.declarations.of(&spec.name)?;
        }
        for (position, path) in &self.again {
            let spec = &self.specs[*position];
            let other = self.declarations.of(path)?;
            if other != spec.placements {
                let show = |placements: &[AxisPlacement]| match placements {
                    [] => "whole".to_string(),
                    [first, ..] => first.to_string(),
                };
                return Err(DistError::config(
                    format!(
                        "one parameter is {} as {}, and {} as {path}",
                        show(&spec.placements),
                        spec.name,
                        show(&other)
                    ),
                    "tie layers that are split alike",
                ));
            }
        }
        Ok(())
    }

    fn push(&mut self, spec: ParameterSpec) {
        self.last = match self.specs.iter().position(|known| known.id == spec.id) {
            Some(known) => {
                self.again.push((known, spec.name));
                Some(known)
            }
            None => {
                self.specs.push(spec);
                Some(self.specs.len() - 1)
            }
        };
    }
}

impl ModuleVisitor for Reader {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        if container_type == "Reparameterization"
            && let Some(spec) = self.last.map(|last| &self.specs[last])
            && spec.trainable
            && self.refused.is_none()
        {
            self.refused = Some(format!(
                "parameter {} already carries the reparameterization {name:?}",
                spec.name
            ));
        }
        self.declarations.enter(&self.path, container_type);
        self.path.push(name.into());
        self.gates += usize::from(container_type == GATE);
    }

    fn exit_module(&mut self, _name: &str, container_type: &str) {
        self.path.pop();
        self.gates -= usize::from(container_type == GATE);
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // A parameter says whether it is trained when it is given a value.
        let tensor = if self.lazy && !param.is_initialized() {
            let value = Tensor::zeros([1; D], &param.lazy_device());
            let param = param.clone().transform_for_load(value, param.id);
            param.base()
        } else {
            param.base()
        };
        self.push(ParameterSpec {
            name: self.path.join("."),
            id: param.id,
            shape: param.lazy_shape().to_vec(),
            dtype: tensor.dtype(),
            device: tensor.device(),
            trainable: tensor.is_require_grad(),
            recurrent: self.gates > 0,
            placements: Vec::new(),
        });
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let tensor = param.val();
        self.push(ParameterSpec {
            name: self.path.join("."),
            id: param.id,
            shape: tensor.dims().to_vec(),
            dtype: tensor.dtype(),
            device: tensor.device(),
            trainable: false,
            recurrent: self.gates > 0,
            placements: Vec::new(),
        });
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let tensor = param.val();
        self.push(ParameterSpec {
            name: self.path.join("."),
            id: param.id,
            shape: tensor.dims().to_vec(),
            dtype: tensor.dtype(),
            device: tensor.device(),
            trainable: false,
            recurrent: self.gates > 0,
            placements: Vec::new(),
        });
    }
}
