//! [`StagePasses`]: forward and backward passes of a rank's stages.

use burn::module::{Module, ModuleMapper, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Gradients, Tensor};
use burn_dist::backend;
use burn_dist::random::{RandomPosition, RandomStream};
use burn_dist::{DistError, Result};

use crate::gradient_sum::added;
use crate::kept::{Kept, left_by};
use crate::{Activation, PipelineStage, Recompute};

/// Draws of one block; the next one's begin after them.
const DRAWS: u64 = 1 << 20;

pub(crate) struct StagePasses<'a, S: PipelineStage> {
    pub(crate) device: &'a Device,
    pub(crate) recompute: Recompute,
    pub(crate) random: Option<&'a RandomStream>,
    pub(crate) step: u64,
    pub(crate) stages: &'a [S],
    /// The stages with running statistics of their own, for what is computed again.
    pub(crate) again: Vec<Option<S>>,
    pub(crate) micro_batches: &'a [S::Batch],
    pub(crate) weights: &'a [f64],
}

impl<S: PipelineStage> StagePasses<'_, S> {
    /// Output without a graph, and what is kept.
    pub(crate) fn forward(
        &self,
        slot: usize,
        micro_batch: usize,
        input: Vec<Activation>,
    ) -> Result<(Vec<Activation>, Kept)> {
        let stage = &self.stages[slot];
        let blocks = stage.blocks();
        let leaves: Vec<Activation> = input.iter().map(Activation::as_leaf).collect();
        if self.recompute == Recompute::Nothing {
            let output = self.run(stage, blocks, micro_batch, leaves.clone())?;
            let detached = output.iter().map(Activation::detached).collect();
            let kept = Kept::Graph {
                input: leaves,
                output,
            };
            return Ok((detached, kept));
        }
        let mut inputs = Vec::new();
        let mut x: Vec<Activation> = input;
        for block in blocks.clone() {
            if self.recompute == Recompute::Blocks || block == blocks.start {
                inputs.push((block, x.clone()));
            }
            // Each block's graph goes before the next one runs.
            let output = self.run(stage, block..block + 1, micro_batch, x)?;
            x = output.iter().map(Activation::detached).collect();
        }
        if inputs.is_empty() {
            inputs.push((blocks.start, x.clone()));
        }
        Ok((x, Kept::Inputs(inputs)))
    }

    fn run(
        &self,
        stage: &S,
        blocks: std::ops::Range<usize>,
        micro_batch: usize,
        input: Vec<Activation>,
    ) -> Result<Vec<Activation>> {
        let batch = &self.micro_batches[micro_batch];
        let mut x = input;
        for block in blocks {
            if let Some(random) = self.random {
                random.rewind(RandomPosition {
                    step: self.step,
                    micro_batch: micro_batch as u64,
                    draw: block as u64 * DRAWS,
                });
            }
            x = stage.forward_block(block, x, batch)?;
        }
        Ok(x)
    }

    /// The loss that the model's last block gave.
    pub(crate) fn loss(output: &[Activation]) -> Result<f64> {
        let loss = match output {
            [one] if one.shape().iter().product::<usize>() == 1 => one.as_float(),
            _ => None,
        };
        let Some(loss) = loss else {
            let shapes: Vec<&[usize]> = output.iter().map(Activation::shape).collect();
            return Err(DistError::config(
                format!("the model's last block gave tensors of shapes {shapes:?}"),
                "it gives one float of one element, the mean loss of the micro-batch",
            ));
        };
        let values = loss.clone().inner().into_data();
        Ok(values.iter::<f64>().next().unwrap_or(f64::NAN))
    }

    /// Gradients of the input's floats, in order, and what is left for the weights. `gradients` are those
    /// of the output's floats; `None` for the last stage, whose output is the loss.
    pub(crate) fn backward(
        &mut self,
        slot: usize,
        micro_batch: usize,
        kept: Kept,
        gradients: Option<Vec<Activation>>,
    ) -> Result<(Vec<Activation>, Kept)> {
        let stage = &self.stages[slot];
        let mut total = GradientsParams::new();
        let mut products = Vec::new();
        let mut flowing = gradients;
        match kept {
            Kept::Graph { input, output } => {
                let (of_input, of_weights) =
                    self.through(stage, micro_batch, &input, output, flowing)?;
                flowing = Some(of_input);
                total = of_weights;
                products.extend(left_by(stage.deferred_products()));
            }
            Kept::Inputs(inputs) => {
                if self.again[slot].is_none() {
                    self.again[slot] = Some(with_own_statistics(stage, self.device));
                }
                let again = self.again[slot].as_ref().expect("invariant: made above");
                let mut end = stage.blocks().end;
                for (block, input) in inputs.into_iter().rev() {
                    let leaves: Vec<Activation> = input.iter().map(Activation::as_leaf).collect();
                    let output = self.run(again, block..end, micro_batch, leaves.clone())?;
                    let (of_input, of_weights) =
                        self.through(again, micro_batch, &leaves, output, flowing)?;
                    flowing = Some(of_input);
                    total = added(total, of_weights, again);
                    products.extend(left_by(again.deferred_products()));
                    end = block;
                }
            }
            Kept::Gradients(..) => unreachable!("invariant: a backward pass runs once"),
        }
        Ok((
            flowing.unwrap_or_default(),
            Kept::Gradients(total, products),
        ))
    }

    /// One graph's backward pass.
    fn through(
        &self,
        stage: &S,
        micro_batch: usize,
        input: &[Activation],
        output: Vec<Activation>,
        gradients: Option<Vec<Activation>>,
    ) -> Result<(Vec<Activation>, GradientsParams)> {
        let root = match gradients {
            None => {
                let loss = output.first().and_then(Activation::as_float).cloned();
                let weight = self.weights[micro_batch];
                // Equal micro-batches keep their bits.
                loss.map(|loss| {
                    if weight == 1.0 {
                        loss
                    } else {
                        loss.mul_scalar(weight)
                    }
                })
            }
            Some(gradients) => seeds(&output, &gradients)?,
        };
        drop(output);
        let mut backward: Option<Gradients> = root.map(|root| root.backward());
        let mut of_input = Vec::new();
        for leaf in input.iter() {
            let Some(values) = leaf.as_float() else {
                continue;
            };
            let gradient = backward
                .as_mut()
                .and_then(|grads| values.grad_remove(grads));
            let gradient = gradient.unwrap_or_else(|| values.clone().inner().zeros_like());
            of_input.push(Activation::from(gradient));
        }
        let of_weights = match backward {
            Some(gradients) => GradientsParams::from_grads(gradients, stage),
            None => GradientsParams::new(),
        };
        Ok((of_input, of_weights))
    }
}

/// A scalar from which a backward pass gives every float output its gradient; `None` if nothing is tracked.
fn seeds(output: &[Activation], gradients: &[Activation]) -> Result<Option<Tensor<1>>> {
    let floats: Vec<&Tensor<1>> = output.iter().filter_map(Activation::as_float).collect();
    let given: Vec<&Tensor<1>> = gradients.iter().filter_map(Activation::as_float).collect();
    let lens = |tensors: &[&Tensor<1>]| -> Vec<usize> {
        tensors.iter().map(|tensor| tensor.dims()[0]).collect()
    };
    if lens(&floats) != lens(&given) {
        return Err(DistError::config(
            format!(
                "gradients of {:?} elements came for outputs of {:?}",
                lens(&given),
                lens(&floats)
            ),
            "a stage gives back the gradients of all floats that it got",
        ));
    }
    let mut sum: Option<Tensor<1>> = None;
    for (output, gradient) in floats.into_iter().zip(given) {
        if !output.is_autodiff() {
            continue;
        }
        let seed = backend::seed(output.clone(), gradient.clone());
        sum = Some(match sum {
            Some(sum) => sum + seed,
            None => seed,
        });
    }
    Ok(sum)
}

/// The same parameters as leaves of their own, and running statistics that are not shared.
fn with_own_statistics<S: Module>(stage: &S, device: &Device) -> S {
    struct On<'a>(&'a Device);
    impl ModuleMapper for On<'_> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let device = self.0;
            param.map(|tensor| {
                let (trained, dtype) = (tensor.is_require_grad(), tensor.dtype());
                let data = tensor.inner().into_data();
                Tensor::from_data(data, (device, dtype)).set_require_grad(trained)
            })
        }
    }
    let own = stage.valid().train();
    let probe: Tensor<1> = Tensor::zeros([1], device);
    match probe.gradient_checkpointing_strategy() {
        Some(strategy) if strategy != Default::default() => own.map(&mut On(device)),
        _ => own,
    }
}
