//! [`Piped`]: a model whose blocks are dealt out to stages.

use std::marker::PhantomData;
use std::ops::Range;

use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;
use burn_dist::backend::DeferredProducts;
use burn_dist::communicator::ReduceOp;
use burn_dist::data_parallel::DataParallel;
use burn_dist::{ProcessGroup, Result};
use burn_pipeline::{ActionSpan, BlockStage, PipelineRuntime, PipelineStep};
use burn_zero::ShardedOptimizer;

use super::Arguments;
use super::dealt_part::{DealtPart, from_root};
use super::rank_groups::{PipelineGroups, RankGroups};
use super::strategy::{adamw, clipped, replicas_config, sharded_config};
use super::traffic_formula::{
    bytes_between_stages, bytes_of_replicas, bytes_of_sharded, bytes_of_split_layers,
};
use super::training::Training;
use crate::gpt::{Gpt, GptConfig, GptPart, TokenBatch};
use crate::text::token_batch;

/// Where gradients go that a pipeline has added up.
enum Delivery {
    Replicas(Box<DataParallel>, ModuleOptimizer),
    Sharded(Box<ShardedOptimizer>),
}

pub(super) struct Piped<'a, P> {
    runtime: PipelineRuntime,
    delivery: Delivery,
    context: PipedContext<'a>,
    /// Of the last step.
    actions: Vec<ActionSpan>,
    part: PhantomData<P>,
}

/// What surrounds a rank of a pipeline.
#[derive(Clone, Copy)]
pub(super) struct PipedContext<'a> {
    pub(super) arguments: &'a Arguments,
    pub(super) groups: &'a RankGroups,
    pub(super) pipeline: &'a PipelineGroups,
    pub(super) everyone: &'a ProcessGroup,
    pub(super) config: &'a GptConfig,
    /// The blocks of each stage.
    pub(super) cut: &'a [Range<usize>],
    pub(super) device: &'a Device,
}

impl<'a, P: DealtPart> Piped<'a, P> {
    pub(super) fn new(
        stages: Vec<BlockStage<P>>,
        runtime: PipelineRuntime,
        context: PipedContext<'a>,
    ) -> Result<(Self, Vec<BlockStage<P>>)> {
        let PipedContext {
            arguments, groups, ..
        } = context;
        let optimizer = adamw(arguments);
        let (delivery, stages) = if arguments.zero > 0 {
            let config = sharded_config(arguments, groups);
            let (sharded, stages) =
                ShardedOptimizer::wrap_with(stages, optimizer, &groups.shard, config)?;
            (Delivery::Sharded(Box::new(sharded)), stages)
        } else {
            let config = replicas_config(arguments);
            let (parallel, stages) = DataParallel::wrap_with(stages, &groups.shard, config)?;
            let delivery = Delivery::Replicas(Box::new(parallel), optimizer.into());
            (delivery, stages)
        };
        let piped = Self {
            runtime,
            delivery,
            context,
            actions: Vec::new(),
            part: PhantomData,
        };
        Ok((piped, stages))
    }

    /// The micro-batches' losses, on every rank. Collective over the pipeline.
    fn losses(&self, step: &PipelineStep) -> Result<Vec<f32>> {
        let own = step.losses.clone().unwrap_or_default();
        let own: Vec<f32> = own.into_iter().map(|loss| loss as f32).collect();
        let plan = self.runtime.plan();
        let last = plan.rank_of(plan.num_stages() - 1);
        let last = last.expect("invariant: the plan was validated");
        // Equally many from each.
        let padded = match own.is_empty() {
            true => vec![0.0; step.micro_batches],
            false => own,
        };
        let mut all = self.context.pipeline.losses.all_gather_values(padded)?;
        Ok(all.swap_remove(last))
    }
}

impl<P: DealtPart> Training for Piped<'_, P> {
    type Model = Vec<BlockStage<P>>;

    fn step(
        &mut self,
        model: Self::Model,
        micro_batches: &[Vec<Vec<u8>>],
    ) -> Result<(Vec<Vec<f32>>, Self::Model)> {
        let PipedContext {
            arguments, groups, ..
        } = self.context;
        let device = self.context.device;
        let batches: Vec<TokenBatch> = micro_batches
            .iter()
            .map(|windows| {
                let (tokens, targets) = token_batch(windows, device);
                TokenBatch { tokens, targets }
            })
            .collect();
        // The pipeline sees the parameters as they are, without hooks.
        let stages = model.clone().materialize();
        let mut step = self
            .runtime
            .step(&stages, &batches, &vec![1.0; batches.len()])?;
        self.actions = std::mem::take(&mut step.spans);
        let losses = self.losses(&step)?;
        let gradients = step.all_gradients(&stages);
        drop(stages);
        let (lr, count) = (arguments.lr, batches.len());
        let model = match &mut self.delivery {
            Delivery::Replicas(parallel, optimizer) => {
                parallel.deliver(gradients, count, &model)?;
                let gradients = parallel.sync_without_input(&model)?;
                let gradients = clipped(gradients, &model, arguments, &groups.model_parallel())?;
                optimizer.step(lr, model, gradients)
            }
            Delivery::Sharded(sharded) => sharded.step_given(lr, model, gradients, count)?,
        };
        Ok((vec![losses], model))
    }

    fn actions(&self) -> &[ActionSpan] {
        &self.actions
    }

    fn formula(&self, model: &Self::Model) -> Result<u64> {
        let PipedContext {
            arguments,
            groups,
            everyone,
            ..
        } = self.context;
        let data_ranks = groups.data.size() as u64;
        let of_stage = match &self.delivery {
            Delivery::Replicas(parallel, _) => {
                bytes_of_replicas(parallel, model, arguments, data_ranks)
            }
            Delivery::Sharded(sharded) => bytes_of_sharded(sharded, model, arguments, data_ranks),
        };
        // Each rank of a data-parallel group says the same of it.
        let total = everyone.all_reduce_values(vec![of_stage], ReduceOp::Sum)?[0] / data_ranks;
        let replica = bytes_of_split_layers(arguments, data_ranks)
            + bytes_between_stages(arguments, data_ranks, self.runtime.plan());
        Ok(total + replica * data_ranks)
    }

    fn whole(&self, model: &Self::Model) -> Result<Gpt> {
        let PipedContext {
            pipeline,
            config,
            cut,
            device,
            ..
        } = self.context;
        let plan = self.runtime.plan();
        let own = self.runtime.stages();
        let mut gpt = config.init(device);
        for (stage, blocks) in cut.iter().enumerate() {
            let owner = plan.rank_of(stage);
            let owner = owner.expect("invariant: the plan was validated");
            let held = own.iter().position(|own| *own == stage);
            for (place, number) in blocks.clone().enumerate() {
                if let Some(held) = held {
                    model[held].blocks[place].put_into(&mut gpt, number)?;
                }
                let part = GptPart::of(&gpt, number, &DeferredProducts::default());
                from_root(part, owner, &pipeline.losses)?.put_into(&mut gpt, number);
            }
        }
        Ok(gpt)
    }
}
