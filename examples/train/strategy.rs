//! How one optimizer step comes about.

use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::{DType, Device, Tensor};
use burn_dist::Result;
use burn_dist::backend::KernelChoice;
use burn_dist::data_parallel::{
    BucketSizes, DataParallel, DataParallelConfig, NaiveDataParallel, RankOrderAccumulator,
};
use burn_dist::fused::FusedAdamW;
use burn_zero::{
    FullyShard, FullySharded, MixedPrecisionPolicy, ModelParallel, ShardedOptimizer,
    ShardedOptimizerConfig, clip_grad_norm_over,
};

use super::arguments::DTypeName;
use super::language_model::LanguageModel;
use super::rank_groups::RankGroups;
use super::{Arguments, Grouping};
use crate::text::token_batch;

pub(super) enum Strategy {
    Overlapped(Box<DataParallel>, ModuleOptimizer),
    Plain(NaiveDataParallel, ModuleOptimizer),
    Sharded(Box<ShardedOptimizer>),
    /// Split parameters; or whole ones with master weights.
    Fully(FullySharded, ModuleOptimizer),
    /// One rank in the grouping of many.
    AsRanks(Grouping, ModuleOptimizer),
}

impl Strategy {
    /// Wraps the model as the arguments say.
    pub(super) fn parallelize<M: Module>(
        model: M,
        arguments: &Arguments,
        groups: &RankGroups,
    ) -> Result<(Self, M)> {
        let optimizer = adamw(arguments);
        let is_bf16 = arguments.dtype == DTypeName::Bf16;
        let mixed_precision = match is_bf16 {
            true => MixedPrecisionPolicy::bf16(),
            false => MixedPrecisionPolicy::default(),
        };
        if arguments.zero == 3 || is_bf16 && arguments.zero == 0 {
            let whole_below = if arguments.zero == 3 { 0 } else { usize::MAX };
            let mut settings = FullyShard::new(&groups.shard)
                .average_micro_steps(true)
                .whole_below(whole_below)
                .mixed_precision(mixed_precision)
                .model_parallel(&groups.model_parallel());
            if let Some(replicate) = &groups.replicate {
                settings = settings.replicate(replicate);
            }
            let (sharded, model) = settings.wrap(model)?;
            let optimizer = ModuleOptimizer::from(optimizer);
            sharded.check_optimizer(&optimizer)?;
            return Ok((Self::Fully(sharded, optimizer), model));
        }
        if let Some(grouping) = arguments.as_ranks {
            return Ok((Self::AsRanks(grouping, optimizer.into()), model));
        }
        let group = &groups.shard;
        if arguments.zero > 0 {
            let config = ShardedOptimizerConfig {
                mixed_precision,
                ..sharded_config(arguments, groups)
            };
            let (sharded, model) = ShardedOptimizer::wrap_with(model, optimizer, group, config)?;
            return Ok((Self::Sharded(Box::new(sharded)), model));
        }
        let (parallel, wrapped) =
            DataParallel::wrap_with(model, group, replicas_config(arguments))?;
        let optimizer = ModuleOptimizer::from(optimizer);
        if arguments.no_overlap {
            let naive = NaiveDataParallel::new(group).with_micro_steps(arguments.micro_batches);
            return Ok((Self::Plain(naive, optimizer), wrapped.materialize()));
        }
        Ok((Self::Overlapped(Box::new(parallel), optimizer), wrapped))
    }

    /// How often stage 3 gathered each unit so far.
    pub(super) fn gathers(&self) -> Vec<u64> {
        match self {
            Self::Fully(sharded, _) => sharded.gathers(),
            _ => Vec::new(),
        }
    }

    /// Losses of this rank's micro-batches, one list per rank that it computes for, and the model after
    /// the step.
    pub(super) fn step<M: LanguageModel>(
        &mut self,
        model: M,
        micro_batches: &[Vec<Vec<u8>>],
        (arguments, parts): (&Arguments, &ModelParallel),
        device: &Device,
    ) -> Result<(Vec<Vec<f32>>, M)> {
        let lr = arguments.lr;
        let loss_of = |model: &M, windows: &[Vec<u8>], losses: &mut Vec<f32>| {
            let (tokens, targets) = token_batch(windows, device);
            let loss = model.mean_loss(tokens, targets)?;
            losses.push(value(&loss));
            Ok(loss)
        };
        let mut losses = Vec::new();
        let (last, first) = micro_batches
            .split_last()
            .expect("invariant: at least one micro-batch");
        match self {
            Self::Overlapped(parallel, optimizer) => {
                for windows in first {
                    let loss = loss_of(&model, windows, &mut losses)?;
                    parallel.no_sync(|| loss.backward());
                }
                let loss = loss_of(&model, last, &mut losses)?;
                let gradients = parallel.sync(loss.backward(), &model)?;
                let gradients = clipped(gradients, &model, arguments, parts)?;
                Ok((vec![losses], optimizer.step(lr, model, gradients)))
            }
            Self::Sharded(sharded) => {
                for windows in first {
                    let loss = loss_of(&model, windows, &mut losses)?;
                    sharded.no_sync(|| loss.backward());
                }
                let loss = loss_of(&model, last, &mut losses)?;
                let model = sharded.step(lr, model, loss.backward())?;
                Ok((vec![losses], model))
            }
            Self::Fully(sharded, optimizer) => {
                for windows in first {
                    let loss = loss_of(&model, windows, &mut losses)?;
                    sharded.no_sync(|| loss.backward());
                }
                let loss = loss_of(&model, last, &mut losses)?;
                let mut gradients = sharded.gradients(loss.backward(), &model)?;
                if let Some(max_norm) = arguments.clip {
                    (gradients, _) = sharded.clip_grad_norm(gradients, &model, max_norm)?;
                }
                // With --as-ranks each micro-batch is that of a rank.
                let lists = match arguments.as_ranks {
                    Some(_) => losses.into_iter().map(|loss| vec![loss]).collect(),
                    None => vec![losses],
                };
                Ok((lists, optimizer.step(lr, model, gradients)))
            }
            Self::Plain(parallel, optimizer) => {
                let mut accumulator = GradientsAccumulator::new();
                for windows in micro_batches {
                    let loss = loss_of(&model, windows, &mut losses)?;
                    let gradients = GradientsParams::from_grads(loss.backward(), &model);
                    accumulator.accumulate(&model, gradients);
                }
                let gradients = parallel.sync(accumulator.grads(), &model)?;
                let gradients = clipped(gradients, &model, arguments, parts)?;
                Ok((vec![losses], optimizer.step(lr, model, gradients)))
            }
            Self::AsRanks(grouping, optimizer) => {
                let mut accumulator = RankOrderAccumulator::in_replicas_of(grouping.shards);
                let mut all = Vec::new();
                for rank in micro_batches.chunks(arguments.micro_batches) {
                    let mut losses = Vec::new();
                    for windows in rank {
                        let loss = loss_of(&model, windows, &mut losses)?;
                        let gradients = GradientsParams::from_grads(loss.backward(), &model);
                        accumulator.add(&model, gradients);
                    }
                    accumulator.end_rank(&model);
                    all.push(losses);
                }
                let gradients = clipped(accumulator.mean(&model), &model, arguments, parts)?;
                Ok((all, optimizer.step(lr, model, gradients)))
            }
        }
    }
}

/// A loss as f32, whatever the model computes in.
fn value(loss: &Tensor<1>) -> f32 {
    loss.clone().inner().cast(DType::F32).into_scalar::<f32>()
}

/// AdamW in one pass, or Burn's chain of operations.
pub(super) fn adamw(arguments: &Arguments) -> FusedAdamW {
    let choice = match arguments.twins {
        true => KernelChoice::Twin,
        false => KernelChoice::Fused,
    };
    FusedAdamW::new(&AdamWConfig::new()).kernels(choice)
}

pub(super) fn sharded_config(arguments: &Arguments, groups: &RankGroups) -> ShardedOptimizerConfig {
    ShardedOptimizerConfig {
        bucket_sizes: bucket_sizes(arguments),
        average_micro_steps: true,
        max_grad_norm: arguments.clip,
        model_parallel: groups.model_parallel(),
        ..ShardedOptimizerConfig::default()
    }
}

pub(super) fn replicas_config(arguments: &Arguments) -> DataParallelConfig {
    DataParallelConfig {
        bucket_sizes: bucket_sizes(arguments),
        average_micro_steps: true,
        ..DataParallelConfig::default()
    }
}

fn bucket_sizes(arguments: &Arguments) -> BucketSizes {
    BucketSizes {
        first: arguments.bucket_bytes.min(1_000_000),
        rest: arguments.bucket_bytes,
    }
}

/// Gradients of a norm that is not too large. Collective over `parts`.
pub(super) fn clipped<M: Module>(
    gradients: GradientsParams,
    model: &M,
    arguments: &Arguments,
    parts: &ModelParallel,
) -> Result<GradientsParams> {
    match arguments.clip {
        Some(max_norm) => Ok(clip_grad_norm_over(gradients, model, max_norm, parts)?.0),
        None => Ok(gradients),
    }
}
