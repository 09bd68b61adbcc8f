//! What is declared of each parameter, without numbers.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

use super::AuditedParameter;
use crate::error::{DistError, Result};
use crate::group::ProcessGroup;
use crate::placement::Declarations;

/// All trained parameters of a model, in visiting order.
pub(super) fn declared<M: Module>(
    model: &M,
    data: Option<&ProcessGroup>,
) -> Result<Vec<AuditedParameter>> {
    let mut list = List {
        declarations: Declarations::read(model),
        path: Vec::new(),
        data,
        listed: Vec::new(),
        failure: None,
    };
    model.visit(&mut list);
    match list.failure {
        Some(failure) => Err(failure),
        None => Ok(list.listed),
    }
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
            error: None,
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
