//! [`measure_blocks`]: how long each block takes.

use std::time::Instant;

use burn_dist::{DistError, Result};

use crate::{Activation, PipelineStage};

/// Seconds of a forward and a backward pass of each block of a model, the median over `rounds` rounds, as costs
/// for [`partition`](crate::partition). `model` holds all blocks. Nothing is sent: measure on one rank and
/// give the others what it found, or they would cut differently.
///
/// # Errors
/// [`DistError::Config`] for a stage that does not start with the model's first block, and for no rounds; else
/// what a block met.
pub fn measure_blocks<S: PipelineStage>(
    model: &S,
    batch: &S::Batch,
    rounds: usize,
) -> Result<Vec<f64>> {
    let blocks = model.blocks();
    if blocks.start != 0 || rounds == 0 {
        return Err(DistError::config(
            format!("{rounds} rounds with blocks {blocks:?}"),
            "measure at least once, with a stage that holds the whole model",
        ));
    }
    let mut seconds = vec![Vec::with_capacity(rounds); blocks.len()];
    // The first round fills caches and draws parameters.
    for round in 0..=rounds {
        let mut input = Vec::new();
        for block in blocks.clone() {
            let leaves: Vec<Activation> = input.iter().map(Activation::as_leaf).collect();
            let start = Instant::now();
            let output = model.forward_block(block, leaves, batch)?;
            let floats = output.iter().filter_map(Activation::as_float);
            let sums = floats.filter(|values| values.is_autodiff());
            let sum = sums.map(|values| values.clone().sum()).reduce(|a, b| a + b);
            input = output.iter().map(Activation::detached).collect();
            drop(output);
            drop(sum.map(|sum| sum.backward()));
            let left = model.deferred_products();
            for (_, product) in left.map_or_else(Vec::new, |products| products.take()) {
                product();
            }
            if round > 0 {
                seconds[block].push(start.elapsed().as_secs_f64());
            }
        }
    }
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    Ok(seconds.into_iter().map(median).collect())
}
