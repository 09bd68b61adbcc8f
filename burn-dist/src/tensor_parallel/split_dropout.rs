//! [`SplitDropout`]: dropout on activations that are whole or split.

use burn::module::Module;
use burn::nn::Dropout;
use burn::tensor::Tensor;

use super::TensorParallel;
use crate::error::{DistError, Result};
use crate::random::{ElementRange, RandomStream};

/// Dropout whose mask does not depend on how the activation is split: equal on ranks that hold it whole,
/// parts of one mask on ranks that hold parts. Nothing is sent. Off where Burn's would be: without autodiff,
/// frozen, or with probability 0.
#[derive(Module, Debug)]
pub struct SplitDropout {
    dropout: Dropout,
    #[module(skip)]
    stream: Option<RandomStream>,
    #[module(skip)]
    part: ElementRange,
}

impl SplitDropout {
    /// On activations that every rank holds whole.
    ///
    /// # Errors
    /// [`DistError::Config`] if something is to be dropped and `parallel` has no random stream.
    pub fn whole(dropout: &Dropout, parallel: &TensorParallel) -> Result<Self> {
        Self::new(dropout, parallel, ElementRange::WHOLE)
    }

    /// On activations that are split along `dim`.
    ///
    /// # Errors
    /// As [`whole`](Self::whole).
    pub fn split(dropout: &Dropout, parallel: &TensorParallel, dim: usize) -> Result<Self> {
        Self::new(dropout, parallel, parallel.part(dim))
    }

    fn new(dropout: &Dropout, parallel: &TensorParallel, part: ElementRange) -> Result<Self> {
        let stream = parallel.random_stream().cloned();
        if dropout.prob > 0.0 && stream.is_none() {
            return Err(DistError::config(
                format!(
                    "rank {}: dropout of {} needs masks that the ranks of group {} agree on",
                    parallel.group().rank(),
                    dropout.prob,
                    parallel.group().name()
                ),
                "give TensorParallel::random a RandomStream of the same seed on all of them, or set dropout to 0",
            ));
        }
        Ok(Self {
            dropout: dropout.clone(),
            stream,
            part,
        })
    }

    /// `[..] -> [..]`.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let probability = self.dropout.prob;
        let (Some(stream), true) = (&self.stream, probability > 0.0) else {
            return input;
        };
        if !self.dropout.training.is_enabled() || !input.is_autodiff() {
            return input;
        }
        let keep = 1.0 - probability;
        let device = input.device().inner();
        let mask = stream.mask(input.dims(), self.part, keep, &device);
        let mask = mask.cast(input.dtype()).mul_scalar(1.0 / keep);
        input * mask
    }

    /// Burn's layer.
    pub fn dense(&self) -> &Dropout {
        &self.dropout
    }
}
