//! [`ShardModule`]: a rank's pieces of a model's parameters, as a module that an optimizer can step.

use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};

/// One-dimensional parameters with the identifiers and paths of those that they are pieces of, so that
/// parameter groups and learning rates find them.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShardModule {
    pub(crate) pieces: Vec<(String, Param<Tensor<1>>)>,
}

impl ShardModule {
    fn each(self, f: impl Fn(Param<Tensor<1>>) -> Param<Tensor<1>>) -> Self {
        let pieces = self.pieces.into_iter();
        Self {
            pieces: pieces.map(|(path, param)| (path, f(param))).collect(),
        }
    }
}

/// Kind of the containers that a path leads through; the optimizer does not look at it.
const CONTAINER: &str = "Struct";

impl Module for ShardModule {
    fn collect_devices(&self, devices: Devices) -> Devices {
        let pieces = self.pieces.iter();
        pieces.fold(devices, |devices, (_, param)| {
            param.collect_devices(devices)
        })
    }

    fn fork(self, device: &Device) -> Self {
        self.each(|param| param.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        self.each(|param| param.to_device(device))
    }

    fn train(self) -> Self {
        self.each(Module::train)
    }

    fn valid(&self) -> Self {
        self.clone().each(|param| param.valid())
    }

    fn materialize(self) -> Self {
        self
    }

    fn visit<Visitor: ModuleVisitor>(&self, visitor: &mut Visitor) {
        for (path, param) in &self.pieces {
            path.split('.')
                .for_each(|name| visitor.enter_module(name, CONTAINER));
            visitor.visit_float(param);
            path.rsplit('.')
                .for_each(|name| visitor.exit_module(name, CONTAINER));
        }
    }

    fn map<Mapper: ModuleMapper>(self, mapper: &mut Mapper) -> Self {
        let pieces = self.pieces.into_iter();
        let mapped = pieces.map(|(path, param)| {
            path.split('.')
                .for_each(|name| mapper.enter_module(name, CONTAINER));
            let param = mapper.map_float(param);
            path.rsplit('.')
                .for_each(|name| mapper.exit_module(name, CONTAINER));
            (path, param)
        });
        Self {
            pieces: mapped.collect(),
        }
    }
}
