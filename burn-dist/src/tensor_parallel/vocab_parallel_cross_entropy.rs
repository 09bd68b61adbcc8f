//! [`vocab_parallel_cross_entropy`]: the loss of logits that are split by tokens.

use burn::tensor::{Int, Tensor};

use super::VocabularyPart;
use super::vocab_parallel_embedding::check_tokens;
use crate::backend::{self, KernelChoice};
use crate::collectives::all_reduce;
use crate::communicator::ReduceOp;
use crate::error::{DistError, Result};
use crate::group::ProcessGroup;

/// What counts how much in a [`vocab_parallel_cross_entropy`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CrossEntropyOptions {
    /// V: number of tokens, over all ranks; logits beyond it are padding.
    pub vocabulary: usize,
    /// Rows with this target count nothing.
    pub ignore_index: Option<i64>,
    /// `a`: the target's share is `1 - a + a/V`, that of every other token `a/V`, as in PyTorch.
    pub label_smoothing: f64,
    /// One pass over the logits, or a chain of operations.
    pub kernels: KernelChoice,
}

impl CrossEntropyOptions {
    /// Every row counts, without smoothing.
    pub fn new(vocabulary: usize) -> Self {
        Self {
            vocabulary,
            ignore_index: None,
            label_smoothing: 0.0,
            kernels: KernelChoice::Fused,
        }
    }
}

/// `[rows, V/n], [rows] -> [1]`: the mean loss over the rows that count, the same on every rank; 0 if none
/// does.
///
/// See [`vocab_parallel_token_losses`].
///
/// # Errors
/// As [`vocab_parallel_token_losses`].
#[track_caller]
pub fn vocab_parallel_cross_entropy(
    logits: Tensor<2>,
    targets: Tensor<1, Int>,
    options: &CrossEntropyOptions,
    group: &ProcessGroup,
) -> Result<Tensor<1>> {
    let [rows] = targets.dims();
    let ignored = match options.ignore_index {
        Some(index) => {
            let ignored = targets.clone().equal_elem(index).int().sum();
            ignored.into_scalar::<i64>() as usize
        }
        None => 0,
    };
    let losses = vocab_parallel_token_losses(logits, targets, options, group)?;
    // Not div_scalar: Burn's backward pass of it rounds the divisor's inverse to f32.
    let place = (&losses.device().inner(), losses.dtype());
    let count = Tensor::full([1], (rows - ignored).max(1) as f64, place);
    Ok(losses.sum() / count)
}

/// `[rows, V/n], [rows] -> [rows]`: the loss of each row, the same on every rank, 0 where the target is
/// ignored. Rank `i` brings the logits of its tokens, as a head made by
/// [`from_dense_vocabulary`](super::ColumnParallelLinear::from_dense_vocabulary) gives them; they are never
/// gathered.
///
/// `loss = ln(sum of e^(z - m)) - (z_target - m)`, `m` the row's largest logit; with smoothing `a` the
/// second term is `(1 - a)(z_target - m) + a mean(z - m)`.
///
/// Forward: three reductions of `[rows, 1]`, the largest logit alone, then the sum of exponentials and the
/// target's logit in one all_reduce (with smoothing the sum of logits, too). Backward: nothing is sent; the
/// gradient, `softmax - target`, is written where the logits were. Logits are read once in each pass, and no
/// other array of their size is made. 16-bit logits are computed on in f32, in which the losses are. Tokens are read to the host, to refuse those that no rank holds; targets are the same on all ranks.
/// (Megatron-LM, arXiv 1909.08053, section 3, "Output embedding".)
///
/// # Errors
/// [`DistError::Config`] for a target outside the vocabulary that is not ignored, for logits that are not
/// this rank's part of it, and for a smoothing outside 0..=1, before anything is sent; else what the group
/// met.
#[track_caller]
pub fn vocab_parallel_token_losses(
    logits: Tensor<2>,
    targets: Tensor<1, Int>,
    options: &CrossEntropyOptions,
    group: &ProcessGroup,
) -> Result<Tensor<1>> {
    let [rows, columns] = logits.dims();
    let part = VocabularyPart::new(options.vocabulary, group.index(), group.size());
    check(&targets, [rows, columns], part, options, group)?;
    let mut local = targets.inner().reshape([rows, 1]);
    let ignored = options
        .ignore_index
        .map(|index| local.clone().equal_elem(index));
    local = local - part.start as i64;
    let mut elsewhere = local
        .clone()
        .lower_elem(0)
        .bool_or(local.clone().greater_equal_elem(part.tokens as i64));
    if let Some(ignored) = &ignored {
        elsewhere = elsewhere.bool_or(ignored.clone());
    }
    let local = local.mask_fill(elsewhere.clone(), -1);

    let parts = backend::row_parts(
        logits.clone().inner(),
        local.clone(),
        part.tokens,
        options.kernels,
    );
    let column = |number: usize| parts.clone().narrow(1, number, 1);
    let largest = all_reduce(column(0), ReduceOp::Max, group)?;
    let of_target = (column(2) - largest.clone()).mask_fill(elsewhere, 0.0);
    let mut sums = vec![column(1) * (column(0) - largest.clone()).exp(), of_target];
    let smoothing = options.label_smoothing;
    if smoothing > 0.0 {
        let tokens = part.tokens as f64;
        sums.push(column(3) - largest.clone().mul_scalar(tokens));
    }
    let sums = all_reduce(Tensor::cat(sums, 1), ReduceOp::Sum, group)?;
    let total = sums.clone().narrow(1, 0, 1);
    let of_target = sums.clone().narrow(1, 1, 1);
    let mut losses = total.clone().log() - of_target.mul_scalar(1.0 - smoothing);
    let share = smoothing / options.vocabulary as f64;
    if smoothing > 0.0 {
        losses = losses - sums.narrow(1, 2, 1).mul_scalar(share);
    }
    let place = (&losses.device(), losses.dtype());
    let every = |value: f64| Tensor::full([rows, 1], value, place);
    let mut slopes = Tensor::cat(
        vec![total.recip(), every(-share), every(1.0 - smoothing)],
        1,
    );
    if let Some(ignored) = ignored {
        losses = losses.mask_fill(ignored.clone(), 0.0);
        slopes = slopes.mask_fill(ignored.expand([rows, 3]), 0.0);
    }
    let slopes = Tensor::cat(vec![largest, slopes], 1);
    let losses = backend::row_loss(logits, local, losses, slopes, part.tokens, options.kernels);
    Ok(losses.reshape([rows]))
}

fn check(
    targets: &Tensor<1, Int>,
    [rows, columns]: [usize; 2],
    part: VocabularyPart,
    options: &CrossEntropyOptions,
    group: &ProcessGroup,
) -> Result<()> {
    let place = format!("rank {}, group {}", group.rank(), group.name());
    if columns != part.rows || targets.dims() != [rows] {
        return Err(DistError::config(
            format!(
                "{place}: logits of shape {:?} and targets of shape {:?}; of a vocabulary of {} this rank brings {} columns",
                [rows, columns],
                targets.dims(),
                options.vocabulary,
                part.rows
            ),
            "bring this rank's logits, and a target for each row",
        ));
    }
    if !(0.0..=1.0).contains(&options.label_smoothing) {
        return Err(DistError::config(
            format!("{place}: label smoothing {}", options.label_smoothing),
            "take a number from 0 to 1",
        ));
    }
    check_tokens(targets, options.vocabulary, options.ignore_index, group)
}
