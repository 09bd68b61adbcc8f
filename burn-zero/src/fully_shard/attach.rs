//! Takes a model's parameters apart: each rank keeps its piece of each.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use burn::module::{ModuleMapper, ModuleVisitor, Param, ParamId, Reparameterizer};
use burn::tensor::{DType, GradientCheckpointingStrategy, Tensor, TensorData};
use burn_dist::communicator::{HostBuffer, Operation};
use burn_dist::data_parallel::{ParameterSpec, ParameterTable};
use burn_dist::{DistError, Result};

use super::graph_ties::Marks;
use super::parameter_version::ParameterVersion;
use super::shard_context::ShardContext;
use super::shard_groups::ShardGroups;
use super::sharded_parameter::ShardedParameter;

/// Gives all ranks the values of index 0, one parameter at a time, and keeps this rank's pieces. Lazy
/// parameters are drawn on index 0 only.
pub(crate) struct Attach<'a> {
    pub(crate) table: &'a ParameterTable,
    pub(crate) version: Arc<ParameterVersion>,
    pub(crate) marks: Arc<Marks>,
    /// Parameters that are left as they are.
    pub(crate) ignored: Vec<ParamId>,
    pub(crate) known: HashMap<ParamId, ShardedParameter>,
    /// The first rank's values of parameters that are not split. Read before: a running state is locked
    /// while it is mapped, and rank threads may share it.
    pub(crate) unmanaged: HashMap<ParamId, HostBuffer>,
    pub(crate) places: usize,
    /// The parameters' own identifiers, by those of their stand-ins.
    pub(crate) ids: HashMap<ParamId, ParamId>,
    pub(crate) failure: Option<DistError>,
}

/// The values of parameters that are neither split nor ignored, as this rank has them.
pub(crate) struct ReadUnmanaged {
    /// Parameters that are not read.
    pub(crate) others: HashSet<ParamId>,
    pub(crate) is_root: bool,
    pub(crate) values: HashMap<ParamId, HostBuffer>,
}

impl ModuleVisitor for ReadUnmanaged {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let has_value = self.is_root || param.is_initialized();
        if has_value && !self.others.contains(&param.id) {
            self.values.insert(param.id, host_values(param));
        }
    }
}

fn host_values<const D: usize>(param: &Param<Tensor<D>>) -> HostBuffer {
    HostBuffer::from(param.base().without_autodiff().into_data())
}

/// Whether this rank's values are those that all get.
pub(crate) fn is_root(groups: &ShardGroups) -> bool {
    let replicas = groups.replicate.as_ref();
    groups.shard.index() == 0 && replicas.is_none_or(|group| group.index() == 0)
}

/// The first rank's values: first to the first rank of each group of shards, then inside it.
pub(crate) fn from_root(
    groups: &ShardGroups,
    spec: &ParameterSpec,
    values: Option<HostBuffer>,
) -> Result<HostBuffer> {
    // Else it gives shape and type only.
    let mut values = values.unwrap_or_else(|| HostBuffer::zeros(spec.dtype, spec.shape.clone()));
    for group in groups.replicate.iter().chain([&groups.shard]) {
        let label = format!("the values of {}", spec.name);
        let work = group.start_for(label, Operation::Broadcast { root: 0 }, values);
        values = work.wait()?;
    }
    Ok(values)
}

impl Attach<'_> {
    fn context(&self) -> &ShardContext {
        &self.version.context
    }

    fn values<const D: usize>(&mut self, param: &Param<Tensor<D>>) -> Option<HostBuffer> {
        let groups = &self.context().groups;
        let position = self.table.position(param.id);
        let spec = &self.table.specs()[position.expect("invariant: the table lists all")];
        let has_value = is_root(groups) || param.is_initialized();
        let values = has_value.then(|| host_values(param));
        match from_root(groups, spec, values) {
            Ok(values) => Some(values),
            Err(failure) => {
                self.failure = Some(failure);
                None
            }
        }
    }

    fn piece(&self, number: usize, values: HostBuffer) -> Tensor<1> {
        let context = self.context();
        let managed = &context.plan.parameters[number];
        let (bytes, dtype, _) = values.into_parts();
        let elements = match context.plan.is_whole(managed.unit) {
            true => 0..managed.num_elements(),
            false => {
                let index = context.groups.shard.index();
                let pieces = context.plan.layout.pieces(managed.unit, index).into_iter();
                let own =
                    |piece: usize| context.plan.units[managed.unit].parameters[piece] == number;
                pieces
                    .filter(|piece| own(piece.parameter))
                    .map(|piece| piece.elements)
                    .next()
                    .unwrap_or(0..0)
            }
        };
        let size = dtype.size();
        let own = bytes[elements.start * size..elements.end * size].to_vec();
        let data = TensorData::from_bytes_vec(own, vec![elements.len()], dtype);
        let piece: Tensor<1> = Tensor::from_data(data, (&context.device, dtype));
        let piece = match managed.master == dtype {
            true => piece,
            false => piece.cast(managed.master).detach(),
        };
        piece.require_grad()
    }

    /// One number in a parameter's shape.
    fn stand_in<const D: usize>(&self, shape: &[usize], dtype: DType) -> Tensor<D> {
        let device = &self.context().device;
        let shape: [usize; D] = shape
            .try_into()
            .expect("invariant: a parameter keeps its rank");
        let tensor: Tensor<D> = match shape.contains(&0) {
            true => Tensor::zeros(shape, (device, dtype)),
            false => Tensor::<D>::zeros([1; D], (device, dtype)).expand(shape),
        };
        tensor.detach().require_grad()
    }
}

impl Reparameterizer for &mut Attach<'_> {
    type Reparam = ShardedParameter;

    fn reparameterize<const D: usize>(
        &mut self,
        _path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<ShardedParameter>) {
        if self.failure.is_some() || self.ignored.contains(&param.id) {
            return (param, None);
        }
        let id = param.id;
        let place = self.places;
        self.places += 1;
        let context = self.version.context.clone();
        let parameters = &context.plan.parameters;
        let number = parameters.iter().position(|managed| managed.id == id);
        // Takes the parameter's settings over without giving it its first value.
        let emptied = |param: Param<Tensor<D>>, id: ParamId| {
            let value = Tensor::zeros([1; D], &param.lazy_device());
            param.transform_for_load(value, id)
        };
        let Some(number) = number else {
            let Some(values) = self.unmanaged.get(&id).cloned() else {
                return (param, None);
            };
            let dtype = values.dtype();
            let device = param.lazy_device();
            let value = Tensor::from_data(TensorData::from(values), (&device, dtype));
            return (emptied(param, id).map(|_| value), None);
        };
        let (shape, dtype) = (parameters[number].shape.clone(), parameters[number].param);
        let piece = match self.known.get(&id) {
            Some(known) => known.at(place),
            None => {
                let Some(values) = self.values(&param) else {
                    return (param, None);
                };
                let piece = Param::initialized(id, self.piece(number, values));
                let first = ShardedParameter::new(&self.version, &self.marks, number, place, piece);
                self.known.insert(id, first.clone());
                first
            }
        };
        let stand_in = self.stand_in(&shape, dtype);
        let stand_in_id = ParamId::new();
        self.ids.insert(stand_in_id, id);
        let base = emptied(param, stand_in_id).map(|_| stand_in);
        (base, Some(piece))
    }
}

/// Gives tracked tensors back the device's way of keeping what the backward pass needs, which a model
/// loses on its way through validation.
pub(crate) struct Recheckpoint(pub(crate) GradientCheckpointingStrategy);

impl ModuleMapper for Recheckpoint {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| {
            if !tensor.is_autodiff() {
                return tensor;
            }
            let requires_grad = tensor.is_require_grad();
            Tensor::from_inner(tensor.inner())
                .with_gradient_checkpointing_strategy(self.0)
                .set_require_grad(requires_grad)
        })
    }
}
