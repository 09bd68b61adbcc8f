//! [`VocabParallelEmbedding`]: an embedding split by tokens.

use burn::config::Config;
use burn::module::{Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, Initializer};
use burn::tensor::module::embedding;
use burn::tensor::{Device, Int, Tensor};

use super::drawn_parts::{Draw, lazy_matrix};
use super::{TensorParallel, VocabularyPart, parts};
use crate::backend;
use crate::collectives::{reduce_from_region, reduce_scatter_from_region};
use crate::error::{DistError, Result};
use crate::mesh::MeshAxis;
use crate::placement::LayerPlacement;

/// An embedding of which rank `i` holds the rows of its tokens, `[V/n, h]`, padded with zeros at the end
/// where the ranks do not divide the vocabulary. A token that is elsewhere gives zeros, and the sum over
/// ranks the row.
///
/// Forward: an all_reduce, or, if activations are split along the sequence, a reduce_scatter. Backward:
/// nothing, or an all_gather. (Megatron-LM, arXiv 1909.08053, section 3.)
#[derive(Module, Debug)]
pub struct VocabParallelEmbedding {
    placement: LayerPlacement,
    /// `[V/n, h]`.
    pub weight: Param<Tensor<2>>,
    #[module(skip)]
    parallel: TensorParallel,
    vocabulary: usize,
}

/// Makes a [`VocabParallelEmbedding`] without its dense layer.
#[derive(Config, Debug)]
pub struct VocabParallelEmbeddingConfig {
    /// V: number of tokens.
    pub n_embedding: usize,
    /// h: width.
    pub d_model: usize,
    /// How parameters are drawn, as in Burn's `EmbeddingConfig`.
    #[config(default = "Initializer::Normal{mean: 0.0, std: 1.0}")]
    pub initializer: Initializer,
}

impl VocabParallelEmbeddingConfig {
    /// This rank's part, drawn when it is first read: the values that `EmbeddingConfig` draws from the
    /// same seed, without ever holding them whole. Local.
    ///
    /// # Errors
    /// [`DistError::Config`] for an initializer that cannot draw in parts.
    pub fn init(
        &self,
        parallel: impl Into<TensorParallel>,
        device: &Device,
    ) -> Result<VocabParallelEmbedding> {
        let parallel = parallel.into();
        let (index, n) = (parallel.group().index(), parallel.group().size());
        let rows = VocabularyPart::new(self.n_embedding, index, n).rows;
        let draw = Draw {
            initializer: self.initializer.clone(),
            rows: self.n_embedding,
            columns: self.d_model,
            fan_in: None,
            fan_out: None,
        };
        draw.check()?;
        let keep = [index * rows..(index + 1) * rows, 0..self.d_model];
        Ok(VocabParallelEmbedding {
            placement: placement(&parallel),
            weight: lazy_matrix(draw, keep, device),
            parallel,
            vocabulary: self.n_embedding,
        })
    }
}

fn placement(parallel: &TensorParallel) -> LayerPlacement {
    LayerPlacement::new(MeshAxis::Tp, parallel.group()).shard("weight", 0)
}

impl VocabParallelEmbedding {
    /// This rank's rows of a dense embedding that all ranks hold alike. Local.
    ///
    /// # Errors
    /// None: any vocabulary can be split.
    pub fn from_dense(dense: &Embedding, parallel: impl Into<TensorParallel>) -> Result<Self> {
        let parallel = parallel.into();
        let (index, n) = (parallel.group().index(), parallel.group().size());
        let whole = parts::values(&dense.weight);
        let [vocabulary, _] = whole.dims();
        let rows = VocabularyPart::new(vocabulary, index, n).rows;
        let own = parts::part(parts::padded(whole, 0, rows * n), 0, index, n);
        Ok(Self {
            placement: placement(&parallel),
            weight: parts::parameter(own, &dense.weight),
            parallel,
            vocabulary,
        })
    }

    /// The dense embedding, without padding. Collective: an all_gather.
    ///
    /// # Errors
    /// What the group met.
    pub fn to_dense(&self) -> Result<Embedding> {
        let device = self.weight.base().device();
        let whole = parts::joined(parts::values(&self.weight), 0, &self.parallel)?;
        let whole = whole.narrow(0, 0, self.vocabulary);
        let mut dense = EmbeddingConfig::new(1, 1).init(&device);
        dense.weight = parts::parameter(whole, &self.weight);
        Ok(dense)
    }

    /// `[b, s] -> [b, s, h]`, or `[b, s/n, h]` where activations are split along the sequence.
    ///
    /// # Errors
    /// [`DistError::Config`] for a token outside the vocabulary, before anything is sent; a sequence that
    /// the ranks do not divide, where activations are split along it; else what the group met.
    #[track_caller]
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Result<Tensor<3>> {
        let group = self.parallel.group();
        check_tokens(&tokens, self.vocabulary, None, group)?;
        let weight = self.weight.val();
        if group.size() == 1 {
            return Ok(embedding(weight, tokens));
        }
        let part = VocabularyPart::new(self.vocabulary, group.index(), group.size());
        let local = tokens - part.start as i64;
        let elsewhere = local
            .clone()
            .lower_elem(0)
            .bool_or(local.clone().greater_equal_elem(part.tokens as i64));
        let rows = embedding(weight, local.mask_fill(elsewhere.clone(), 0));
        let [b, s, h] = rows.dims();
        let rows = rows.mask_fill(elsewhere.unsqueeze_dim::<3>(2).expand([b, s, h]), 0.0);
        match self.parallel.is_sequence_parallel() {
            true => reduce_scatter_from_region(rows, 1, group),
            false => reduce_from_region(rows, group),
        }
    }

    /// `[.., h] -> [.., V/n]`: the logits of a model whose last layer is this embedding, transposed. Forward
    /// and backward as a [`ColumnParallelLinear`](super::ColumnParallelLinear).
    ///
    /// # Errors
    /// As [`ColumnParallelLinear::forward`](super::ColumnParallelLinear::forward).
    #[track_caller]
    pub fn logits<const D: usize>(&self, hidden: Tensor<D>) -> Result<Tensor<D>> {
        let weight = self.weight.val().transpose();
        if self.parallel.group().size() == 1 {
            return Ok(burn::tensor::module::linear(hidden, weight, None));
        }
        backend::column_product(hidden, weight, self.parallel.column::<D>())
    }

    /// V: number of tokens, over all ranks.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The group and its settings.
    pub fn parallel(&self) -> &TensorParallel {
        &self.parallel
    }
}

/// Refuses tokens that no rank holds: they would silently count as zeros.
pub(super) fn check_tokens<const D: usize>(
    tokens: &Tensor<D, Int>,
    vocabulary: usize,
    ignored: Option<i64>,
    group: &crate::group::ProcessGroup,
) -> Result<()> {
    let values = tokens.clone().into_data();
    let mut values = values.iter::<i64>();
    let is_outside = |token: &i64| {
        Some(*token) != ignored && !usize::try_from(*token).is_ok_and(|token| token < vocabulary)
    };
    match values.find(is_outside) {
        None => Ok(()),
        Some(token) => Err(DistError::config(
            format!(
                "rank {}, group {}: token {token} is outside a vocabulary of {vocabulary}",
                group.rank(),
                group.name()
            ),
            "look at the tokenizer, or at the index that is to be ignored",
        )),
    }
}
