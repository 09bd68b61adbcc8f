//! [`ShardedOptimizer`]: ZeRO stages 1 and 2.

use std::collections::{HashMap, HashSet};

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, Param, ParamId};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{DType, Device, Gradients, Tensor, TensorData};
use burn_dist::communicator::{HostBuffer, Operation, Work};
use burn_dist::data_parallel::{BucketShard, BucketSizes, DataParallel, DataParallelConfig};
use burn_dist::{DistError, ProcessGroup, Result};

use crate::model_values::{ReadPieces, TakeValues};
use crate::shard_module::ShardModule;
use crate::whole_parameters::{KeepOwn, Share, owners};
use crate::{ShardLayout, ShardPiece, ShardableOptimizer};

/// How a [`ShardedOptimizer`] works.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShardedOptimizerConfig {
    /// Target sizes of the units in which gradients are reduced and parameters gathered.
    pub bucket_sizes: BucketSizes,
    /// `true`: the gradient is the mean over ranks and micro-steps; `false` (default): the mean over
    /// ranks of the sum over micro-steps.
    pub average_micro_steps: bool,
}

/// An optimizer whose state is split over the ranks of a group, for any module, without touching its
/// code: ZeRO stages 1 and 2 (arXiv 1910.02054, sections 5.1 and 5.2).
///
/// *What is replicated:* parameters. *What is split:* the batch, the optimizer's state, and reduced
/// gradients: a bucket's full gradient is freed as soon as it is reduced. *What moves* per step and
/// rank, S being the bytes of all parameters: `S(n-1)/n` to reduce gradients, while the backward pass
/// still runs, and `S(n-1)/n` to gather parameters. For an optimizer that needs whole parameters,
/// gradients are reduced on all ranks (`2S(n-1)/n`), each rank sends the parameters that it owns to all
/// others (`S(n-1)/n` on average), and only the state is split.
///
/// The numbers are those of [`DataParallel`] with the same optimizer, bit for bit.
///
/// ```no_run
/// # use burn::{nn::Linear, optim::AdamWConfig, tensor::Tensor};
/// # use burn_dist::{ProcessGroup, Result};
/// # use burn_zero::ShardedOptimizer;
/// # fn example(group: ProcessGroup, model: Linear, batch: Tensor<2>) -> Result<()> {
/// let optimizer = AdamWConfig::new().build();
/// let (mut sharded, mut model) = ShardedOptimizer::wrap(model, optimizer, &group)?;
/// let loss = model.forward(batch).mean();
/// model = sharded.step(1e-3, model, loss.backward())?;
/// # Ok(()) }
/// ```
pub struct ShardedOptimizer {
    parallel: DataParallel,
    optimizer: ModuleOptimizer,
    layout: ShardLayout,
    ownership: Ownership,
}

/// What this rank steps.
enum Ownership {
    /// Its equal part of every unit.
    Pieces(Vec<ShardPiece>),
    /// Whole parameters; the index of each parameter's owner, by its number.
    Whole(Vec<usize>),
}

impl std::fmt::Debug for ShardedOptimizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardedOptimizer")
            .field("parallel", &self.parallel)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

impl ShardedOptimizer {
    /// Wraps a training model and an optimizer with the default configuration. Collective.
    ///
    /// # Errors
    /// As [`wrap_with`](Self::wrap_with).
    pub fn wrap<M: Module>(
        model: M,
        optimizer: impl Into<ShardableOptimizer>,
        group: &ProcessGroup,
    ) -> Result<(Self, M)> {
        Self::wrap_with(model, optimizer, group, ShardedOptimizerConfig::default())
    }

    /// Wraps the model as [`DataParallel::wrap_with`] does and divides the optimizer's state. An
    /// [`ElementWise`](crate::ElementWise) optimizer is cut in equal parts; any other one steps whole
    /// parameters, dealt out by size. Collective.
    ///
    /// # Errors
    /// As [`DataParallel::wrap_with`].
    pub fn wrap_with<M: Module>(
        model: M,
        optimizer: impl Into<ShardableOptimizer>,
        group: &ProcessGroup,
        config: ShardedOptimizerConfig,
    ) -> Result<(Self, M)> {
        let ShardableOptimizer {
            optimizer,
            element_wise,
        } = optimizer.into();
        let config = DataParallelConfig {
            bucket_sizes: config.bucket_sizes,
            average_micro_steps: config.average_micro_steps,
            shard_gradients: element_wise,
        };
        let (parallel, model) = DataParallel::wrap_with(model, group, config)?;
        let units = parallel.plan().buckets().iter().map(|bucket| {
            let slots = bucket.slots.iter();
            slots.map(|slot| (slot.parameter, slot.len)).collect()
        });
        let layout = ShardLayout::new(units.collect(), group.size());
        let ownership = match element_wise {
            true => {
                let units = 0..layout.num_units();
                let pieces = units.flat_map(|unit| layout.pieces(unit, group.index()));
                Ownership::Pieces(pieces.collect())
            }
            false => Ownership::Whole(owners(parallel.parameters(), group.size())),
        };
        let sharded = Self {
            parallel,
            optimizer,
            layout,
            ownership,
        };
        Ok((sharded, model))
    }

    /// The ranks.
    pub fn group(&self) -> &ProcessGroup {
        self.parallel.group()
    }

    /// The wrapped model's parameters, hooks and buckets.
    pub fn data_parallel(&self) -> &DataParallel {
        &self.parallel
    }

    /// Which rank holds what; prints as a map. For whole parameters, see [`owner`](Self::owner).
    pub fn layout(&self) -> &ShardLayout {
        &self.layout
    }

    /// The index of the rank that steps a parameter as a whole, by its number in
    /// [`DataParallel::parameters`]; `None` if parameters are cut.
    pub fn owner(&self, parameter: usize) -> Option<usize> {
        match &self.ownership {
            Ownership::Pieces(_) => None,
            Ownership::Whole(owners) => owners.get(parameter).copied(),
        }
    }

    /// Elements whose optimizer state this rank keeps, padding apart.
    pub fn num_elements(&self) -> usize {
        match &self.ownership {
            Ownership::Pieces(pieces) => pieces.iter().map(|piece| piece.place.len()).sum(),
            Ownership::Whole(owners) => {
                let specs = self.parallel.parameters().specs().iter();
                let own = specs
                    .zip(owners)
                    .filter(|(spec, owner)| spec.trainable && **owner == self.group().index());
                own.map(|(spec, _)| spec.num_elements()).sum()
            }
        }
    }

    /// The optimizer, with the state of what this rank owns.
    pub fn optimizer(&self) -> &ModuleOptimizer {
        &self.optimizer
    }

    /// As [`DataParallel::no_sync`]: the gradients of a micro-step stay on this rank until the step.
    pub fn no_sync(&self, backward: impl FnOnce() -> Gradients) {
        self.parallel.no_sync(backward);
    }

    /// Reduces what the backward pass left, steps what this rank owns, and gives every rank all new
    /// parameters. Collective. Parameters that no rank used stay as they are.
    ///
    /// # Errors
    /// A failure of the group, also one met during the backward pass; [`DistError::Config`] for a model
    /// that is not the wrapped one. The model is lost then: parameters of the ranks may differ.
    pub fn step<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        model: M,
        gradients: Gradients,
    ) -> Result<M> {
        match &self.ownership {
            Ownership::Pieces(_) => self.step_pieces(lr.into(), model, gradients),
            Ownership::Whole(_) => self.step_whole(lr.into(), model, gradients),
        }
    }

    fn step_pieces<M: Module>(
        &mut self,
        lr: ModuleLearningRate,
        model: M,
        gradients: Gradients,
    ) -> Result<M> {
        let shards = self.parallel.sync_shards(gradients)?;
        let Ownership::Pieces(pieces) = &self.ownership else {
            unreachable!("invariant: asked before")
        };
        let specs = self.parallel.parameters().specs();
        let values = self.read(&model, pieces)?;
        let gradients = self.gradients_of(pieces, shards);
        let mut module = ShardModule::default();
        for (piece, value) in pieces.iter().zip(values) {
            let spec = &specs[piece.parameter];
            // As an optimizer gets parameters: on a device that tracks.
            let param = Param::initialized(spec.id, Tensor::from_inner(value));
            module.pieces.push((spec.name.clone(), param));
        }
        let stepped = self.optimizer.step(lr, module, gradients);
        // Nobody needs the old values any more: the new ones take their memory.
        let trained = self.layout_parameters();
        let mut frames = TakeValues::new(trained);
        let model = model.map(&mut frames);
        let works: Vec<(DType, Work)> = (0..self.layout.num_units())
            .map(|unit| self.gather(unit, pieces, &stepped))
            .collect();
        let mut values = HashMap::new();
        for (unit, (dtype, work)) in works.into_iter().enumerate() {
            let whole = work.wait()?;
            let device = self.unit_device(unit);
            let whole: Tensor<1> = Tensor::from_data(TensorData::from(whole), (&device, dtype));
            for (parameter, place) in self.layout.places(unit) {
                values.insert(specs[parameter].id, whole.clone().slice([place]));
            }
        }
        Ok(model.map(&mut frames.put(values)))
    }

    /// All parameters that travel in units.
    fn layout_parameters(&self) -> HashSet<ParamId> {
        let specs = self.parallel.parameters().specs();
        let units = 0..self.layout.num_units();
        let places = units.flat_map(|unit| self.layout.places(unit));
        places.map(|(parameter, _)| specs[parameter].id).collect()
    }

    /// This rank's pieces of the parameters as they are now.
    fn read<M: Module>(&self, model: &M, pieces: &[ShardPiece]) -> Result<Vec<Tensor<1>>> {
        let specs = self.parallel.parameters().specs();
        let wanted = pieces.iter().enumerate();
        let mut reader = ReadPieces {
            wanted: wanted
                .map(|(number, piece)| (specs[piece.parameter].id, (number, piece)))
                .collect(),
            values: vec![None; pieces.len()],
        };
        model.visit(&mut reader);
        let missing = reader.values.iter().position(Option::is_none);
        if let Some(missing) = missing {
            let name = &specs[pieces[missing].parameter].name;
            return Err(DistError::config(
                format!(
                    "rank {}: the model has no parameter {name}",
                    self.group().rank()
                ),
                "pass the model that ShardedOptimizer::wrap or step returned",
            ));
        }
        Ok(reader.values.into_iter().flatten().collect())
    }

    fn gradients_of(&self, pieces: &[ShardPiece], shards: Vec<BucketShard>) -> GradientsParams {
        let specs = self.parallel.parameters().specs();
        let mut gradients = GradientsParams::new();
        let buckets = self.parallel.plan().buckets();
        for (unit, shard) in shards.into_iter().enumerate() {
            let (dtype, device) = (shard.values.dtype(), self.unit_device(unit));
            let data = TensorData::from(shard.values);
            let part: Tensor<1> = Tensor::from_data(data, (&device, dtype));
            let slots = &buckets[unit].slots;
            for piece in pieces.iter().filter(|piece| piece.unit == unit) {
                let slot = slots
                    .iter()
                    .position(|slot| slot.parameter == piece.parameter);
                if !shard.used[slot.expect("invariant: a piece lies in its unit")] {
                    continue;
                }
                let spec = &specs[piece.parameter];
                let gradient = part.clone().slice([piece.place.clone()]).cast(spec.dtype);
                gradients.register(spec.id, gradient);
            }
        }
        gradients
    }

    /// Starts the gathering of a unit's parameters.
    fn gather(&self, unit: usize, pieces: &[ShardPiece], stepped: &ShardModule) -> (DType, Work) {
        let dtype = self.unit_dtype(unit);
        let part = self.layout.part_len(unit);
        let pool = self.group().communicator().pool();
        let mut own = HostBuffer::recycled(pool, dtype, &[part]);
        let size = dtype.size();
        let mut end = 0;
        let of_unit = pieces.iter().zip(&stepped.pieces);
        for (piece, (_, param)) in of_unit.filter(|(piece, _)| piece.unit == unit) {
            let data = param.base().inner().cast(dtype).into_data();
            let place = piece.place.start * size..piece.place.end * size;
            end = place.end;
            own.bytes_mut()[place].copy_from_slice(data.as_bytes());
        }
        // Padding: nobody reads it.
        own.bytes_mut()[end..].fill(0);
        (dtype, self.group().start(Operation::AllGather, own))
    }

    /// The parameters' own element type, or that of the reduction where they have several: 16-bit
    /// values survive f32.
    fn unit_dtype(&self, unit: usize) -> DType {
        let bucket = &self.parallel.plan().buckets()[unit];
        let specs = self.parallel.parameters().specs();
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

    fn unit_device(&self, unit: usize) -> Device {
        let bucket = &self.parallel.plan().buckets()[unit];
        let first = bucket.slots[0].parameter;
        self.parallel.parameters().specs()[first]
            .device
            .clone()
            .inner()
    }

    fn step_whole<M: Module>(
        &mut self,
        lr: ModuleLearningRate,
        model: M,
        gradients: Gradients,
    ) -> Result<M> {
        let mut gradients = self.parallel.sync(gradients, &model)?;
        let Ownership::Whole(owners) = &self.ownership else {
            unreachable!("invariant: asked before")
        };
        let index = self.group().index();
        let specs = self.parallel.parameters().specs();
        let mut others = KeepOwn {
            own: specs
                .iter()
                .zip(owners)
                .filter(|(_, owner)| **owner == index)
                .map(|(spec, _)| spec.id)
                .collect(),
            gradients: &mut gradients,
        };
        model.visit(&mut others);
        let model = self.optimizer.step(lr, model, gradients);
        let mut share = Share {
            sharded: self,
            works: Vec::new(),
            seen: HashSet::new(),
        };
        model.visit(&mut share);
        let works = share.works;
        let trained = works.iter().map(|(id, ..)| *id).collect();
        let mut frames = TakeValues::new(trained);
        let model = model.map(&mut frames);
        let mut values = HashMap::new();
        for (id, dtype, device, work) in works {
            let data = TensorData::from(work.wait()?);
            values.insert(id, Tensor::from_data(data, (&device, dtype)));
        }
        Ok(model.map(&mut frames.put(values)))
    }
}
