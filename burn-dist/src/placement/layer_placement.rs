//! [`LayerPlacement`]: what a layer declares of its parameters.

use std::fmt;
use std::str::FromStr;

use burn::module::{
    Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
};
use burn::tensor::Device;

use super::{AxisPlacement, Placement};
use crate::communicator::ReduceOp;
use crate::error::{DistError, Result};
use crate::group::ProcessGroup;
use crate::mesh::MeshAxis;

/// A field of a layer that says how the layer's parameters lie over one axis. It holds no parameter.
///
/// Burn's visitors see names and types of containers and nothing else that a layer knows: the
/// declaration is the type under which this field shows itself, so that everything that visits a model
/// ([`ParameterTable`](crate::data_parallel::ParameterTable), and with it `DataParallel`, ZeRO and norms)
/// reads it, whatever model the layer is in.
///
/// ```
/// # use burn::{module::{Module, Param}, tensor::Tensor};
/// # use burn_dist::{ProcessGroup, mesh::MeshAxis, placement::LayerPlacement};
/// #[derive(Module, Debug)]
/// struct Split {
///     placement: LayerPlacement,
///     weight: Param<Tensor<2>>,
/// }
/// # fn declare(group: &ProcessGroup) -> LayerPlacement {
/// LayerPlacement::new(MeshAxis::Tp, group).shard("weight", 1)
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerPlacement {
    axis: MeshAxis,
    ranks: Vec<usize>,
    parameters: Vec<(String, Placement, Placement)>,
}

/// Starts the type under which a declaration shows itself; no type of Rust is called so.
const MARK: &str = "burn_dist::placement ";

impl LayerPlacement {
    /// Nothing declared yet, over an axis whose ranks are those of `group`.
    pub fn new(axis: MeshAxis, group: &ProcessGroup) -> Self {
        Self {
            axis,
            ranks: group.ranks().to_vec(),
            parameters: Vec::new(),
        }
    }

    /// The parameters in field `field`, at any depth, are parts along `dim`; so are their gradients.
    pub fn shard(self, field: &str, dim: usize) -> Self {
        self.with(field, Placement::Shard(dim), Placement::Shard(dim))
    }

    /// The parameters in field `field` are whole, and all ranks compute the same gradients.
    pub fn replicate(self, field: &str) -> Self {
        self.with(field, Placement::Replicate, Placement::Replicate)
    }

    /// The parameters in field `field` are whole; each rank sees other tokens, and the layer adds the
    /// gradients up in its backward pass.
    pub fn summed(self, field: &str) -> Self {
        let sum = Placement::Partial(ReduceOp::Sum);
        self.with(field, Placement::Replicate, sum)
    }

    fn with(mut self, field: &str, parameter: Placement, gradient: Placement) -> Self {
        self.parameters.push((field.into(), parameter, gradient));
        self
    }

    /// Field names and what is declared of each.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, AxisPlacement)> {
        self.parameters.iter().map(|(field, parameter, gradient)| {
            let placement = AxisPlacement {
                axis: self.axis,
                ranks: self.ranks.clone(),
                parameter: *parameter,
                gradient: *gradient,
            };
            (field.as_str(), placement)
        })
    }

    /// Reads what a visitor was told; `None` if it is no declaration.
    pub(super) fn of_container(container_type: &str) -> Option<Result<Self>> {
        container_type.strip_prefix(MARK).map(str::parse)
    }
}

impl fmt::Display for LayerPlacement {
    /// `tp 0,1 weight:shard(1):shard(1) bias:replicate:replicate`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks: Vec<String> = self.ranks.iter().map(usize::to_string).collect();
        write!(f, "{} {}", self.axis, ranks.join(","))?;
        for (field, parameter, gradient) in &self.parameters {
            write!(f, " {field}:{parameter}:{gradient}")?;
        }
        Ok(())
    }
}

impl FromStr for LayerPlacement {
    type Err = DistError;

    fn from_str(text: &str) -> Result<Self> {
        let malformed = || {
            DistError::config(
                format!("{text:?} is no placement of a layer"),
                "it reads as `tp 0,1 weight:shard(1):shard(1)`",
            )
        };
        let mut words = text.split(' ');
        let axis = words.next().ok_or_else(malformed)?.parse()?;
        let ranks = words.next().ok_or_else(malformed)?.split(',');
        let ranks = ranks.map(|rank| rank.parse().map_err(|_| malformed()));
        let mut placement = Self {
            axis,
            ranks: ranks.collect::<Result<_>>()?,
            parameters: Vec::new(),
        };
        for word in words {
            let mut parts = word.splitn(3, ':');
            let (field, parameter, gradient) = match (parts.next(), parts.next(), parts.next()) {
                (Some(field), Some(parameter), Some(gradient)) => (field, parameter, gradient),
                _ => return Err(malformed()),
            };
            placement = placement.with(field, parameter.parse()?, gradient.parse()?);
        }
        Ok(placement)
    }
}

impl Module for LayerPlacement {
    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        let shown = format!("{MARK}{self}");
        visitor.enter_module("declared", &shown);
        visitor.exit_module("declared", &shown);
    }

    fn map<M: ModuleMapper>(self, _mapper: &mut M) -> Self {
        self
    }

    fn collect_devices(&self, devices: Devices) -> Devices {
        devices
    }

    fn to_device(self, _device: &Device) -> Self {
        self
    }

    fn fork(self, _device: &Device) -> Self {
        self
    }

    fn materialize(self) -> Self {
        self
    }

    fn valid(&self) -> Self {
        self.clone()
    }

    fn train(self) -> Self {
        self
    }
}

impl ModuleDisplayDefault for LayerPlacement {
    fn content(&self, content: Content) -> Option<Content> {
        content.add_formatted(&self.to_string()).optional()
    }
}

impl ModuleDisplay for LayerPlacement {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let placement = LayerPlacement {
            axis: MeshAxis::Tp,
            ranks: vec![2, 3],
            parameters: Vec::new(),
        };
        let placement = placement
            .shard("weight", 1)
            .replicate("bias")
            .summed("norm");
        let text = placement.to_string();
        let shown =
            "tp 2,3 weight:shard(1):shard(1) bias:replicate:replicate norm:replicate:partial(sum)";
        assert_eq!(text, shown);
        assert_eq!(text.parse(), Ok(placement.clone()));
        let container = format!("{MARK}{text}");
        assert_eq!(
            LayerPlacement::of_container(&container),
            Some(Ok(placement))
        );
        assert_eq!(LayerPlacement::of_container("Struct:Linear"), None);
        for text in ["", "tp", "tp x", "xx 0", "tp 0 weight", "tp 0 w:shard(1)"] {
            assert!(text.parse::<LayerPlacement>().is_err(), "{text}");
        }
    }
}
