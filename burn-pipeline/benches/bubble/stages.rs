//! A rank's stages of a GPT, and its batches.

use std::ops::Range;

use burn::tensor::Device;
use burn_dist::backend::DeferredProducts;
use burn_dist::{Result, World};
use burn_pipeline::{BlockStage, PipelineLinks, PipelineRuntime, Schedule, partition};
use examples::gpt::{GptConfig, GptPart, TokenBatch};
use examples::workload::tokens;

pub(crate) type Stage = BlockStage<GptPart>;

pub(crate) fn device() -> Device {
    Device::flex().autodiff()
}

pub(crate) fn schedules() -> [Schedule; 4] {
    [
        Schedule::GPipe,
        Schedule::OneFOneB,
        Schedule::Interleaved(2),
        Schedule::ZeroBubbleH1,
    ]
}

/// Eight equal blocks: the embedding and the head are small beside them.
pub(crate) fn equal_blocks() -> GptConfig {
    GptConfig::new()
        .with_layers(8)
        .with_hidden(256)
        .with_heads(8)
}

/// Numbered micro-batches of `sequences` sequences each.
pub(crate) fn micro_batches(
    config: &GptConfig,
    count: usize,
    sequences: usize,
    round: usize,
) -> Vec<TokenBatch> {
    let (shape, vocabulary) = ([sequences, config.seq], config.vocabulary);
    let device = device();
    let one = |number: usize| {
        let seed = round * 1009 + number;
        let [tokens, targets] =
            [2 * seed, 2 * seed + 1].map(|seed| tokens(shape, vocabulary, seed as u64, &device));
        TokenBatch { tokens, targets }
    };
    (0..count).map(one).collect()
}

/// Stages that cost the same, by `costs` of all blocks.
pub(crate) fn cut(costs: &[f64], schedule: &Schedule, ranks: usize) -> Result<Vec<Range<usize>>> {
    partition(costs, ranks * schedule.chunks().unwrap_or(1))
}

/// This rank's stages of the model that every rank draws from one seed, and what runs them.
pub(crate) fn deal(
    world: &World,
    config: &GptConfig,
    schedule: &Schedule,
    micro_batches: usize,
    costs: &[f64],
) -> Result<(PipelineRuntime, Vec<Stage>)> {
    let ranks: Vec<usize> = (0..world.world_size()).collect();
    let plan = schedule.plan(ranks.len(), micro_batches)?;
    let links = PipelineLinks::over(world, &ranks)?;
    let runtime = PipelineRuntime::new(&plan, links, &device())?;
    let own = runtime.stages();
    let stages = stages(config, &cut(costs, schedule, ranks.len())?, &own)?;
    Ok((runtime, stages))
}

/// Stages of the model that every rank draws from one seed.
pub(crate) fn stages(
    config: &GptConfig,
    cut: &[Range<usize>],
    own: &[usize],
) -> Result<Vec<Stage>> {
    let (device, products) = (device(), DeferredProducts::default());
    device.seed(42);
    let parts = config.init_parts(&products, &device);
    let stages = BlockStage::deal(parts, cut, own)?.into_iter();
    Ok(stages
        .map(|stage| stage.with_deferred_products(&products))
        .collect())
}
