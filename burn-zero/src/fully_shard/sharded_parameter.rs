//! [`ShardedParameter`]: a parameter that is a shard and acts whole.

use std::sync::Arc;

use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor, Param, Reparameterization};
use burn::tensor::{Device, Tensor};
use burn_dist::backend::{self, ParameterSource, ParameterUse};

use super::graph_ties::{GraphTies, Marks};
use super::parameter_version::{Change, ParameterVersion};

/// What a parameter of a wrapped model carries: this rank's piece of it, one-dimensional, which
/// optimizers, gradients and visitors find under the parameter's own identifier and path.
///
/// The parameter's own base is a stand-in: one number seen in the parameter's shape.
#[derive(Debug, Clone)]
pub(crate) struct ShardedParameter {
    version: Arc<ParameterVersion>,
    ties: Arc<GraphTies>,
    parameter: usize,
    /// Its place in the model; a tied parameter stands in several.
    place: usize,
    /// Whether it is the first place of this parameter.
    first: bool,
    piece: Param<Tensor<1>>,
    _holder: Arc<()>,
}

const NAME: &str = "fully_shard";
const CONTAINER: &str = "Reparameterization";

impl ShardedParameter {
    pub(crate) fn new(
        version: &Arc<ParameterVersion>,
        marks: &Arc<Marks>,
        parameter: usize,
        place: usize,
        piece: Param<Tensor<1>>,
    ) -> Self {
        version.put(parameter, &piece.base());
        let ties = version.ties(marks);
        ties.put(parameter, piece.clone());
        Self {
            version: version.clone(),
            ties,
            parameter,
            place,
            first: true,
            piece,
            _holder: version.holder(parameter),
        }
    }

    /// The same parameter at another place of the model.
    pub(crate) fn at(&self, place: usize) -> Self {
        Self {
            place,
            first: false,
            ..self.clone()
        }
    }

    /// The same parameter in the next version. `change` gives the new piece, at the parameter's first
    /// place; others follow it.
    fn changed(
        self,
        change: Change,
        new: impl FnOnce(Param<Tensor<1>>) -> Param<Tensor<1>>,
    ) -> Self {
        let version = self.version.succeed(self.place, change);
        let ties = version.ties(self.ties.marks());
        let known = match self.first {
            true => None,
            false => ties.piece(self.parameter),
        };
        let piece = known.unwrap_or_else(|| {
            version.forget(self.parameter);
            if self.version.forget_last(self.parameter) {
                self.ties.forget(self.parameter);
            }
            let piece = new(self.piece);
            version.put(self.parameter, &piece.base());
            ties.put(self.parameter, piece.clone());
            piece
        });
        Self {
            _holder: version.holder(self.parameter),
            version,
            ties,
            parameter: self.parameter,
            place: self.place,
            first: self.first,
            piece,
        }
    }
}

impl Reparameterization for ShardedParameter {
    const NAME: &'static str = NAME;

    fn apply<const D: usize>(&self, _base: Tensor<D>) -> Tensor<D> {
        let context = &self.version.context;
        let managed = &context.plan.parameters[self.parameter];
        let piece = self.piece.base();
        let tracked = piece.is_autodiff() && piece.is_require_grad();
        let source: Arc<dyn ParameterSource> = self.version.clone();
        let parameter = ParameterUse {
            source: source.clone(),
            parameter: self.parameter,
            shape: managed.shape.clone(),
            dtype: managed.param,
            kept: !tracked || !context.reshard_after_forward,
            in_place: context.plan.is_whole(managed.unit),
        };
        if !tracked {
            return backend::unshard_untracked(piece, parameter);
        }
        let known = managed
            .recurrent
            .then(|| self.ties.shared_use(self.parameter));
        if let Some(tensor) = known.flatten() {
            return tensor;
        }
        let mark = self.ties.marks().of_unit(managed.unit, &source);
        let tensor: Tensor<D> = backend::unshard(piece, &mark, parameter);
        if managed.recurrent {
            self.ties.share_use(self.parameter, tensor.clone());
        }
        tensor
    }
}

impl Module for ShardedParameter {
    fn collect_devices(&self, devices: Devices) -> Devices {
        self.piece.collect_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        self.changed(Change::Fork, |piece| piece.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        self.changed(Change::Device, |piece| piece.to_device(device))
    }

    fn train(self) -> Self {
        self.changed(Change::Train, Module::train)
    }

    fn valid(&self) -> Self {
        self.clone().changed(Change::Valid, |piece| piece.valid())
    }

    fn materialize(self) -> Self {
        self
    }

    fn visit<Visitor: ModuleVisitor>(&self, visitor: &mut Visitor) {
        if !self.first {
            return;
        }
        // Under the parameter's own path, so that groups of parameters find it.
        visitor.exit_module(NAME, CONTAINER);
        visitor.visit_float(&self.piece);
        visitor.enter_module(NAME, CONTAINER);
    }

    fn map<Mapper: ModuleMapper>(self, mapper: &mut Mapper) -> Self {
        self.changed(Change::Map, |piece| {
            mapper.exit_module(NAME, CONTAINER);
            let piece = mapper.map_float(piece);
            mapper.enter_module(NAME, CONTAINER);
            piece
        })
    }
}
