//! A step on equal parts of every unit.

use std::collections::{HashMap, HashSet};

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, Param, ParamId};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{DType, Device, Tensor};
use burn_dist::backend::{FlatMemory, FlatWork, KernelChoice, unpack};
use burn_dist::communicator::{HostBuffer, Operation};
use burn_dist::data_parallel::{BucketShard, DataParallel};
use burn_dist::{DistError, Result};

use super::ShardedOptimizerConfig;
use super::model_values::{ReadPieces, TakeValues};
use super::shard_module::ShardModule;
use crate::whole_values::WholeUnits;
use crate::{ModelParallel, NormSum, ShardLayout, ShardPiece};

/// This rank's equal part of every unit.
pub(super) struct Pieces {
    pieces: Vec<ShardPiece>,
    /// The parameters' values as they are stepped, where the model holds them otherwise: in fewer bits,
    /// or on another device.
    masters: Option<Vec<Tensor<1>>>,
    /// What `masters` hold; `None`: as the model.
    master: Option<DType>,
    param: Option<DType>,
    offload: Option<Device>,
}

/// A piece's number and its gradient.
pub(super) type PieceGradient = (usize, Tensor<1>);

impl Pieces {
    /// Reads this rank's pieces of a model whose parameters have not been cast yet.
    pub(super) fn new<M: Module>(
        model: &M,
        parallel: &DataParallel,
        layout: &ShardLayout,
        config: &ShardedOptimizerConfig,
    ) -> Result<Self> {
        let units = 0..layout.num_units();
        let index = parallel.group().index();
        let policy = config.mixed_precision;
        let specs = parallel.parameters().specs();
        let trained = specs.iter().filter(|spec| spec.trainable);
        let mut dtypes = trained.map(|spec| spec.dtype);
        // A model of 16 bits gets masters unasked.
        let wider = dtypes.find(|dtype| HostBuffer::sum_dtype(*dtype) != *dtype);
        let master = policy
            .master
            .or(policy.param.map(|_| DType::F32))
            .or(wider.map(HostBuffer::sum_dtype));
        let mut pieces = Self {
            pieces: units.flat_map(|unit| layout.pieces(unit, index)).collect(),
            masters: None,
            master,
            param: policy.param,
            offload: config.offload.clone(),
        };
        if pieces.master.is_some() || pieces.offload.is_some() {
            let values = pieces.read(model, parallel)?;
            pieces.masters = Some(values);
        }
        Ok(pieces)
    }

    pub(super) fn num_elements(&self) -> usize {
        self.pieces.iter().map(|piece| piece.place.len()).sum()
    }

    /// The values of this rank's pieces in a model, as they are stepped.
    fn read<M: Module>(&self, model: &M, parallel: &DataParallel) -> Result<Vec<Tensor<1>>> {
        let specs = parallel.parameters().specs();
        let wanted = self.pieces.iter().enumerate();
        let mut reader = ReadPieces {
            wanted: wanted
                .map(|(number, piece)| (specs[piece.parameter].id, (number, piece)))
                .collect(),
            values: vec![None; self.pieces.len()],
        };
        model.visit(&mut reader);
        let missing = reader.values.iter().position(Option::is_none);
        if let Some(missing) = missing {
            let name = &specs[self.pieces[missing].parameter].name;
            return Err(DistError::config(
                format!(
                    "rank {}: the model has no parameter {name}",
                    parallel.group().rank()
                ),
                "pass the model that ShardedOptimizer::wrap or step returned",
            ));
        }
        let values = reader.values.into_iter().flatten();
        Ok(values.map(|value| self.as_stepped(value)).collect())
    }

    fn as_stepped(&self, value: Tensor<1>) -> Tensor<1> {
        let value = match self.master {
            Some(dtype) => value.cast(dtype),
            None => value,
        };
        match &self.offload {
            Some(device) => value.to_device(&device.clone().inner()),
            None => value,
        }
    }

    /// The gradients of this rank's pieces; a parameter that no rank used has none.
    pub(super) fn gradients(
        &self,
        shards: Vec<BucketShard>,
        parallel: &DataParallel,
    ) -> Vec<PieceGradient> {
        let specs = parallel.parameters().specs();
        let buckets = parallel.plan().buckets();
        let mut gradients = Vec::new();
        for (unit, shard) in shards.into_iter().enumerate() {
            let device = match &self.offload {
                Some(device) => device.clone().inner(),
                None => unit_device(unit, parallel),
            };
            let part = shard.values.into_tensor(&device);
            let slots = &buckets[unit].slots;
            let of_unit = self.pieces.iter().enumerate();
            for (number, piece) in of_unit.filter(|(_, piece)| piece.unit == unit) {
                let slot = slots
                    .iter()
                    .position(|slot| slot.parameter == piece.parameter);
                if !shard.used[slot.expect("invariant: a piece lies in its unit")] {
                    continue;
                }
                let dtype = self.master.unwrap_or(specs[piece.parameter].dtype);
                let (start, shape) = (piece.place.start, [piece.place.len()]);
                let gradient = unpack(part.clone(), start, shape, 1.0, dtype, KernelChoice::Fused);
                gradients.push((number, gradient));
            }
        }
        gradients
    }

    /// The sum of squares over all ranks. Collective.
    pub(super) fn sum_of_squares(
        &self,
        gradients: &[PieceGradient],
        parallel: &DataParallel,
        model_parallel: &ModelParallel,
    ) -> Result<NormSum> {
        let specs = parallel.parameters().specs();
        let counted = gradients.iter().filter(|(number, _)| {
            let spec = &specs[self.pieces[*number].parameter];
            model_parallel.counts(spec.id, &spec.placements)
        });
        let sum = NormSum::of(counted.map(|(_, gradient)| gradient.clone()).collect());
        model_parallel.sum(sum.all_reduce(parallel.group())?)
    }

    /// Steps this rank's pieces and gives every rank all new parameters. Collective.
    pub(super) fn step<M: Module>(
        &mut self,
        lr: ModuleLearningRate,
        model: M,
        gradients: Vec<PieceGradient>,
        optimizer: &mut ModuleOptimizer,
        parallel: &DataParallel,
        layout: &ShardLayout,
    ) -> Result<M> {
        let specs = parallel.parameters().specs();
        let values = match self.masters.take() {
            Some(values) => values,
            None => self.read(&model, parallel)?,
        };
        let mut module = ShardModule::default();
        for (piece, value) in self.pieces.iter().zip(values) {
            let spec = &specs[piece.parameter];
            // As an optimizer gets parameters: on a device that tracks.
            let param = Param::initialized(spec.id, Tensor::from_inner(value));
            module.pieces.push((spec.name.clone(), param));
        }
        let mut by_id = GradientsParams::new();
        for (number, gradient) in gradients {
            by_id.register(specs[self.pieces[number].parameter].id, gradient);
        }
        let stepped = optimizer.step(lr, module, by_id);
        // Nobody needs the old values any more: the new ones take their memory.
        let mut frames = TakeValues::new(trained(parallel, layout));
        let model = model.map(&mut frames);
        let works = (0..layout.num_units())
            .map(|unit| self.gather(unit, &stepped, parallel, layout))
            .collect::<Result<Vec<FlatWork>>>()?;
        if self.master.is_some() || self.offload.is_some() {
            let stepped = stepped.pieces.into_iter();
            self.masters = Some(stepped.map(|(_, param)| param.base().inner()).collect());
        }
        let mut values = HashMap::new();
        for (unit, work) in works.into_iter().enumerate() {
            let whole = work.wait()?.into_tensor(&unit_device(unit, parallel));
            for (parameter, place) in layout.places(unit) {
                values.insert(specs[parameter].id, whole.clone().slice([place]));
            }
        }
        Ok(model.map(&mut frames.put(values)))
    }

    /// The parameters' values as they are stepped, flat, by their numbers; `None` if the model has them so.
    /// Collective.
    pub(super) fn gather_masters(
        &self,
        parallel: &DataParallel,
        layout: &ShardLayout,
        wanted: bool,
    ) -> Result<Option<Vec<(usize, Tensor<1>)>>> {
        let (Some(masters), Some(dtype)) = (&self.masters, self.master) else {
            return Ok(None);
        };
        let units = WholeUnits {
            group: parallel.group(),
            layout,
            device: &|unit| unit_device(unit, parallel),
            dtype: &|_| dtype,
        };
        let values = units.gather(wanted, |piece| {
            let own = self.pieces.iter().position(|own| own == piece);
            masters[own.expect("invariant: the layout gave it")].clone()
        })?;
        let by_number = values.into_iter();
        Ok(Some(
            by_number.map(|((_, number), v)| (number, v)).collect(),
        ))
    }

    /// Starts the gathering of a unit's parameters.
    fn gather(
        &self,
        unit: usize,
        stepped: &ShardModule,
        parallel: &DataParallel,
        layout: &ShardLayout,
    ) -> Result<FlatWork> {
        let dtype = self.param.unwrap_or(unit_dtype(unit, parallel));
        let group = parallel.group();
        let of_unit = self.pieces.iter().zip(&stepped.pieces);
        let of_unit = of_unit.filter(|(piece, _)| piece.unit == unit);
        let own = FlatMemory::of(group, &unit_device(unit, parallel)).join(
            dtype,
            layout.part_len(unit),
            of_unit.map(|(piece, (_, param))| (piece.place.clone(), param.base().inner())),
        )?;
        Ok(own.start(Operation::AllGather, group, None))
    }
}

/// All parameters that travel in units.
fn trained(parallel: &DataParallel, layout: &ShardLayout) -> HashSet<ParamId> {
    let specs = parallel.parameters().specs();
    let units = 0..layout.num_units();
    let places = units.flat_map(|unit| layout.places(unit));
    places.map(|(parameter, _)| specs[parameter].id).collect()
}

/// The parameters' own element type, or that of the reduction where they have several: 16-bit values
/// survive f32.
fn unit_dtype(unit: usize, parallel: &DataParallel) -> DType {
    let bucket = &parallel.plan().buckets()[unit];
    let specs = parallel.parameters().specs();
    let dtypes: HashSet<DType> = bucket
        .slots
        .iter()
        .map(|slot| specs[slot.parameter].dtype)
        .collect();
    match dtypes.len() {
        1 => dtypes.into_iter().next().expect("invariant: one"),
        _ => bucket.dtype,
    }
}

fn unit_device(unit: usize, parallel: &DataParallel) -> Device {
    let bucket = &parallel.plan().buckets()[unit];
    let first = bucket.slots[0].parameter;
    parallel.parameters().specs()[first].device.clone().inner()
}
