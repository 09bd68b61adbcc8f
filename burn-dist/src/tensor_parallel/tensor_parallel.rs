//! [`TensorParallel`]: the group and how layers use it.

use std::panic::Location;

use burn::tensor::Tensor;

use crate::backend::ColumnProduct;
use crate::collectives::{gather_from_region, scatter_to_region};
use crate::error::{DistError, Result};
use crate::group::ProcessGroup;
use crate::random::{ElementRange, RandomStream};

/// The ranks over which layers are split, and how. Every layer takes it; a group alone is one with the
/// defaults.
///
/// ```no_run
/// # use burn::{nn::Linear, tensor::Tensor};
/// # use burn_dist::{ProcessGroup, Result, tensor_parallel::*};
/// # fn example(up: Linear, down: Linear, x: Tensor<3>, group: ProcessGroup) -> Result<Tensor<3>> {
/// let up = ColumnParallelLinear::from_dense(&up, &group)?;
/// let down = RowParallelLinear::from_dense(&down, &group)?;
/// down.forward(up.forward(x)?)
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct TensorParallel {
    group: ProcessGroup,
    sequence_parallel: bool,
    regather: bool,
    overlap: bool,
    random: Option<RandomStream>,
}

impl TensorParallel {
    /// Layers split over `group`; activations between them whole on every rank.
    pub fn new(group: &ProcessGroup) -> Self {
        Self {
            group: group.clone(),
            sequence_parallel: false,
            regather: false,
            overlap: true,
            random: None,
        }
    }

    /// `true`: activations between the split layers are split along the sequence; as many bytes travel.
    pub fn sequence_parallel(mut self, on: bool) -> Self {
        self.sequence_parallel = on;
        self
    }

    /// With sequence parallelism. `true`: a column layer keeps only this rank's part of its input for the
    /// backward pass, which gathers it again beside a product: `bsh(n-1)/n` more elements sent per
    /// column layer, `bsh(n-1)/n` fewer kept. `false` (default): it keeps what it gathered.
    pub fn regather(mut self, on: bool) -> Self {
        self.regather = on;
        self
    }

    /// `true` (default): collectives in the backward passes of column layers run beside the product that
    /// gives the weight's gradient. The numbers are the same.
    pub fn overlap(mut self, on: bool) -> Self {
        self.overlap = on;
        self
    }

    /// Where dropout draws its masks; the same stream, at the same position, on every rank of the group.
    pub fn random(mut self, stream: &RandomStream) -> Self {
        self.random = Some(stream.clone());
        self
    }

    /// The ranks.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// Whether activations between split layers are split along the sequence.
    pub fn is_sequence_parallel(&self) -> bool {
        self.sequence_parallel && self.group.size() > 1
    }

    /// Where dropout draws its masks.
    pub fn random_stream(&self) -> Option<&RandomStream> {
        self.random.as_ref()
    }

    /// `[b, s, h] -> [b, s/n, h]`, the way into a part whose activations are split along the sequence;
    /// without sequence parallelism nothing. Forward nothing is sent; backward all_gather.
    ///
    /// # Errors
    /// A sequence that `n` does not divide; else what the group met.
    #[track_caller]
    pub fn split_sequence(&self, whole: Tensor<3>) -> Result<Tensor<3>> {
        match self.is_sequence_parallel() {
            true => scatter_to_region(whole, 1, &self.group),
            false => Ok(whole),
        }
    }

    /// `[b, s/n, h] -> [b, s, h]`, the way back; without sequence parallelism nothing. Forward all_gather;
    /// backward nothing is sent.
    ///
    /// # Errors
    /// What the group met.
    #[track_caller]
    pub fn join_sequence(&self, part: Tensor<3>) -> Result<Tensor<3>> {
        match self.is_sequence_parallel() {
            true => gather_from_region(part, 1, &self.group),
            false => Ok(part),
        }
    }

    /// The part of an activation that is split along `dim`.
    pub(super) fn part(&self, dim: usize) -> ElementRange {
        ElementRange {
            dim,
            index: self.group.index(),
            parts: self.group.size(),
        }
    }

    #[track_caller]
    pub(super) fn column<const D: usize>(&self) -> ColumnProduct {
        ColumnProduct {
            group: self.group.clone(),
            sequence_dim: self.is_sequence_parallel().then(|| D.saturating_sub(2)),
            regather: self.regather,
            overlap: self.overlap,
            site: Location::caller(),
        }
    }

    /// `rank 1, group tp`, for messages.
    pub(super) fn place(&self) -> String {
        format!("rank {}, group {}", self.group.rank(), self.group.name())
    }

    /// Refuses an input that does not fit a weight, before anything is sent.
    pub(super) fn check_input<const D: usize>(
        &self,
        input: &Tensor<D>,
        weight: &Tensor<2>,
    ) -> Result<()> {
        let [rows, _] = weight.dims();
        if D > 1 && input.dims()[D - 1] == rows {
            return Ok(());
        }
        Err(self.group.invalid_call(
            "a split layer",
            format!(
                "an input of shape {:?} for a weight of {rows} rows",
                input.dims()
            ),
            format!("bring [.., tokens, {rows}]"),
        ))
    }

    /// A width of `whole` in equal parts.
    pub(super) fn divide(&self, what: &str, whole: usize) -> Result<usize> {
        let n = self.group.size();
        if whole.is_multiple_of(n) {
            return Ok(whole / n);
        }
        Err(DistError::config(
            format!(
                "{}: {what} is {whole}, not a multiple of the {n} ranks",
                self.place()
            ),
            "take a width that they divide, or fewer ranks for this layer",
        ))
    }
}

impl From<&ProcessGroup> for TensorParallel {
    fn from(group: &ProcessGroup) -> Self {
        Self::new(group)
    }
}

impl From<&TensorParallel> for TensorParallel {
    fn from(parallel: &TensorParallel) -> Self {
        parallel.clone()
    }
}
