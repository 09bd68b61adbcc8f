//! Replicas: the same table on all ranks, the root's values on all ranks, and a hash to compare.

use std::any::Any;
use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, Int, Tensor, TensorData, kind::Basic};
use sha2::{Digest, Sha256};

use super::ParameterTable;
use crate::communicator::{HostBuffer, Operation};
use crate::error::{DistError, Result};
use crate::group::ProcessGroup;

/// Compares names, shapes, element types and order over the group. Collective.
///
/// # Errors
/// [`DistError::Replica`] naming the first parameter that differs.
pub(super) fn verify(table: &ParameterTable, group: &ProcessGroup) -> Result<()> {
    let lines: Vec<String> = table.specs().iter().map(|s| s.describe()).collect();
    let text = lines.join("\n");
    let hash = Sha256::digest(text.as_bytes()).to_vec();
    let hashes = group.all_gather_values(hash.clone())?;
    if hashes.iter().all(|other| *other == hash) {
        return Ok(());
    }
    // Every rank sees all hashes, so every rank joins this call and fails.
    let texts = group.all_gather_text(&text)?;
    let differs = |index: &usize| texts[*index] != texts[0];
    let index = match group.index() {
        own if texts[own] != texts[0] => 0,
        _ => (0..texts.len())
            .find(differs)
            .expect("invariant: different hashes come from different texts"),
    };
    let other: Vec<&str> = texts[index].lines().collect();
    let place = (0..lines.len().max(other.len()))
        .find(|&i| lines.get(i).map(String::as_str) != other.get(i).copied())
        .expect("invariant: different texts differ in a line");
    let show = |line: Option<&str>, count: usize| match line {
        Some(line) => format!("parameter {place}: {line}"),
        None => format!("no parameter {place}, the model has {count}"),
    };
    Err(DistError::Replica {
        rank: group.rank(),
        group: group.name().into(),
        differing: group.ranks()[index],
        expected: show(lines.get(place).map(String::as_str), lines.len()),
        got: show(other.get(place).copied(), other.len()),
        hint: "build the same model on every rank".into(),
    })
}

/// Gives every rank the values of index 0, as new leaves of its own. Collective.
pub(super) fn broadcast<M: Module>(
    module: M,
    table: &ParameterTable,
    group: &ProcessGroup,
) -> Result<M> {
    let mut mapper = BroadcastMapper {
        table,
        group,
        known: HashMap::new(),
        failure: None,
    };
    let module = module.map(&mut mapper);
    match mapper.failure {
        Some(failure) => Err(failure),
        None => Ok(module),
    }
}

/// Gives every rank the integers and booleans of index 0. Collective.
///
/// # Errors
/// What the group met.
pub fn broadcast_buffers<M: Module>(
    module: M,
    table: &ParameterTable,
    group: &ProcessGroup,
) -> Result<M> {
    let mut mapper = BufferMapper(BroadcastMapper {
        table,
        group,
        known: HashMap::new(),
        failure: None,
    });
    let module = module.map(&mut mapper);
    match mapper.0.failure {
        Some(failure) => Err(failure),
        None => Ok(module),
    }
}

/// Gives every rank all that is not trained of index 0: running statistics of a BatchNorm, frozen
/// parameters, integers and booleans. Collective: a broadcast for each.
///
/// # Errors
/// What the group met.
pub fn broadcast_untrained<M: Module>(
    module: M,
    table: &ParameterTable,
    group: &ProcessGroup,
) -> Result<M> {
    let mut mapper = UntrainedMapper(BufferMapper(BroadcastMapper {
        table,
        group,
        known: HashMap::new(),
        failure: None,
    }));
    let module = module.map(&mut mapper);
    match mapper.0.0.failure {
        Some(failure) => Err(failure),
        None => Ok(module),
    }
}

struct UntrainedMapper<'a>(BufferMapper<'a>);

impl ModuleMapper for UntrainedMapper<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        // By the table: in a validation model nothing asks for gradients.
        let table = self.0.0.table;
        let position = table.position(param.id);
        match position.is_some_and(|position| !table.specs()[position].trainable) {
            true => self.0.0.map_float(param),
            // What is not in the table stands for a parameter that is kept elsewhere.
            false => param,
        }
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        self.0.map_int(param)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        self.0.map_bool(param)
    }
}

struct BufferMapper<'a>(BroadcastMapper<'a>);

impl ModuleMapper for BufferMapper<'_> {
    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        self.0.map_int(param)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        self.0.map_bool(param)
    }
}

struct BroadcastMapper<'a> {
    table: &'a ParameterTable,
    group: &'a ProcessGroup,
    /// Tensors that came, so that a shared parameter stays shared.
    known: HashMap<ParamId, Box<dyn Any>>,
    failure: Option<DistError>,
}

impl BroadcastMapper<'_> {
    fn value<const D: usize, K: Basic + 'static>(
        &mut self,
        id: ParamId,
        tensor: Tensor<D, K>,
    ) -> Tensor<D, K> {
        if self.failure.is_some() {
            return tensor;
        }
        if let Some(known) = self.known.get(&id)
            && let Some(tensor) = known.downcast_ref::<Tensor<D, K>>()
        {
            return tensor.clone();
        }
        let device = match self.table.position(id) {
            Some(position) => self.table.specs()[position].device.clone(),
            None => tensor.device(),
        };
        let dtype = tensor.dtype();
        let input = HostBuffer::from(tensor.clone().into_data());
        match self.group.run(Operation::Broadcast { root: 0 }, input) {
            Ok(output) => Tensor::from_data(TensorData::from(output), (&device, dtype)),
            Err(failure) => {
                self.failure = Some(failure);
                tensor
            }
        }
    }
}

impl ModuleMapper for BroadcastMapper<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let id = param.id;
        param.map(|tensor| {
            let trainable = tensor.is_require_grad();
            let value = self.value(id, tensor);
            let value = if value.is_require_grad() == trainable {
                value
            } else {
                value.set_require_grad(trainable)
            };
            self.known.insert(id, Box::new(value.clone()));
            value
        })
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let id = param.id;
        param.map(|tensor| self.value(id, tensor))
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        let id = param.id;
        param.map(|tensor| self.value(id, tensor))
    }
}

/// SHA-256 of every parameter and buffer, in visiting order.
#[derive(Default)]
struct HashVisitor {
    hashes: Vec<[u8; 32]>,
}

impl HashVisitor {
    fn push(&mut self, data: &TensorData) {
        let mut hasher = Sha256::new();
        hasher.update(format!("{:?} {:?} ", data.shape(), data.dtype()));
        hasher.update(data.as_bytes());
        self.hashes.push(hasher.finalize().into());
    }
}

impl ModuleVisitor for HashVisitor {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.push(&param.base().into_data());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.push(&param.val().into_data());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.push(&param.val().into_data());
    }
}

/// A hash of all parameters and buffers of a module: shapes, element types and bits, in visiting
/// order. 64 hexadecimal digits. Local.
pub fn parameter_hash<M: Module>(module: &M) -> String {
    let mut visitor = HashVisitor::default();
    module.visit(&mut visitor);
    let mut hasher = Sha256::new();
    for hash in &visitor.hashes {
        hasher.update(hash);
    }
    hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Compares the bits of all parameters over the group. Collective.
///
/// # Errors
/// [`DistError::Replica`] on every rank, naming the first parameter that differs.
pub(super) fn compare<M: Module>(
    module: &M,
    table: &ParameterTable,
    group: &ProcessGroup,
) -> Result<()> {
    let mut visitor = HashVisitor::default();
    module.visit(&mut visitor);
    let own: Vec<u8> = visitor.hashes.concat();
    let all = group.all_gather_values(own)?;
    let differs = |index: &usize| all[*index] != all[0];
    let index = match group.index() {
        own if all[own] != all[0] => 0,
        _ => match (0..all.len()).find(differs) {
            Some(index) => index,
            None => return Ok(()),
        },
    };
    let own = &all[group.index()];
    let place = own
        .chunks(32)
        .zip(all[index].chunks(32))
        .position(|(own, other)| own != other)
        .unwrap_or(0);
    let name = table.specs().get(place).map_or("?", |spec| &spec.name);
    let show = |hashes: &[u8]| {
        let hash = hashes.chunks(32).nth(place).unwrap_or(&[]);
        let digits: String = hash.iter().take(8).map(|b| format!("{b:02x}")).collect();
        format!("{name} with hash {digits}...")
    };
    Err(DistError::Replica {
        rank: group.rank(),
        group: group.name().into(),
        differing: group.ranks()[index],
        expected: show(own),
        got: show(&all[index]),
        hint: "something changed parameters on one rank only: a step without sync, or an \
               optimizer with state of its own"
            .into(),
    })
}
