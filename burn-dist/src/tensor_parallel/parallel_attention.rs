//! [`ParallelAttention`]: attention split by heads.

use burn::config::Config;
use burn::module::Module;
use burn::nn::attention::{MhaOutput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::{DropoutConfig, Initializer, Linear};
use burn::tensor::activation::{quiet_softmax, softmax};
use burn::tensor::{Bool, Device, Tensor};

use super::{
    ColumnParallelLinear, ColumnParallelLinearConfig, RowParallelLinear, RowParallelLinearConfig,
    SplitDropout, TensorParallel,
};
use crate::error::{DistError, Result};

/// Multi-head attention of which rank `i` of `n` computes its heads: query, key and value are one
/// [`ColumnParallelLinear`] of three sections, the output is a [`RowParallelLinear`]. Key and value may have
/// fewer heads than query (grouped queries); the ranks must divide both.
///
/// `Y = [.. | softmax(Q_j K_j' / sqrt(d)) V_j | ..] W_o`, as Burn's `MultiHeadAttention`. Forward one
/// collective, backward one; two each where activations are split along the sequence. Attention to another
/// sequence has one, or two, more for key and value each. (Megatron-LM, arXiv 1909.08053, section 3.)
#[derive(Module, Debug)]
pub struct ParallelAttention {
    /// `[.., h] -> [.., heads d/n]` for query, key and value.
    pub query_key_value: ColumnParallelLinear,
    /// `[.., heads d/n] -> [.., h]`.
    pub output: RowParallelLinear,
    /// On the weights `[b, heads/n, s, s]`.
    pub dropout: SplitDropout,
    shape: AttentionShape,
}

/// What attention does besides its linear layers.
#[derive(Module, Debug)]
struct AttentionShape {
    d_model: usize,
    /// Of this rank.
    heads: usize,
    /// Of this rank.
    key_value_heads: usize,
    d_head: usize,
    min_float: f64,
    quiet_softmax: bool,
}

/// Makes a [`ParallelAttention`] without its dense module.
#[derive(Config, Debug)]
pub struct ParallelAttentionConfig {
    /// h: input and output features.
    pub d_model: usize,
    /// Heads of the query, over all ranks.
    pub n_heads: usize,
    /// Heads of key and value, over all ranks; as many as of the query by default.
    pub n_key_value_heads: Option<usize>,
    /// Dropout on the weights.
    #[config(default = 0.1)]
    pub dropout: f64,
    /// What a masked score is.
    #[config(default = -1.0e4)]
    pub min_float: f64,
    /// A softmax that may attend to nothing.
    #[config(default = false)]
    pub quiet_softmax: bool,
    /// Whether the four linear layers have a bias.
    #[config(default = true)]
    pub bias: bool,
    /// How parameters are drawn.
    #[config(
        default = "Initializer::KaimingUniform{gain: 1.0 / 3f64.sqrt(), fan_out_only: false}"
    )]
    pub initializer: Initializer,
}

/// What attention looks at; shapes are whole on every rank, but for a sequence-split input.
#[derive(Debug, Clone)]
pub struct AttentionInput {
    query: Tensor<3>,
    /// Key and value, if they are not the query.
    memory: Option<(Tensor<3>, Tensor<3>)>,
    mask_pad: Option<Tensor<2, Bool>>,
    mask_attn: Option<Tensor<3, Bool>>,
}

impl AttentionInput {
    /// `[b, s, h]`, or `[b, s/n, h]` where activations are split along the sequence: attends to itself.
    pub fn self_attn(tensor: Tensor<3>) -> Self {
        Self {
            query: tensor,
            memory: None,
            mask_pad: None,
            mask_attn: None,
        }
    }

    /// `[b, s, h], [b, t, h], [b, t, h]`: query, key and value; parts of `s` and `t` where activations are
    /// split along the sequence.
    pub fn new(query: Tensor<3>, key: Tensor<3>, value: Tensor<3>) -> Self {
        Self {
            query,
            memory: Some((key, value)),
            mask_pad: None,
            mask_attn: None,
        }
    }

    /// `[b, t]`, the whole sequence: true where a token is padding.
    pub fn mask_pad(mut self, mask: Tensor<2, Bool>) -> Self {
        self.mask_pad = Some(mask);
        self
    }

    /// `[b, s, t]`, the whole sequences: true where a token must not look.
    pub fn mask_attn(mut self, mask: Tensor<3, Bool>) -> Self {
        self.mask_attn = Some(mask);
        self
    }
}

impl ParallelAttentionConfig {
    /// This rank's part, with the values that Burn's config draws from the same seed. Local.
    ///
    /// # Errors
    /// [`DistError::Config`] if the ranks do not divide the heads, and for dropout without a random stream.
    pub fn init(
        &self,
        parallel: impl Into<TensorParallel>,
        device: &Device,
    ) -> Result<ParallelAttention> {
        let parallel = parallel.into();
        let shape = self.shape(&parallel)?;
        let d_head = shape.d_head;
        let key_value_heads = self.key_value_heads();
        let memory = key_value_heads * d_head;
        let sections = vec![self.n_heads * d_head, memory, memory];
        let dropout = DropoutConfig::new(self.dropout).init();
        Ok(ParallelAttention {
            query_key_value: ColumnParallelLinearConfig::new(self.d_model, sections)
                .with_bias(self.bias)
                .with_initializer(self.initializer.clone())
                .init(&parallel, device)?,
            output: RowParallelLinearConfig::new(self.n_heads * d_head, self.d_model)
                .with_bias(self.bias)
                .with_initializer(self.initializer.clone())
                .init(&parallel, device)?,
            dropout: SplitDropout::split(&dropout, &parallel, 1)?,
            shape,
        })
    }
}

impl ParallelAttentionConfig {
    fn key_value_heads(&self) -> usize {
        self.n_key_value_heads.unwrap_or(self.n_heads)
    }

    /// Of one rank.
    fn shape(&self, parallel: &TensorParallel) -> Result<AttentionShape> {
        let shape = AttentionShape {
            d_model: self.d_model,
            heads: self.n_heads,
            key_value_heads: self.key_value_heads(),
            d_head: self.d_model / self.n_heads.max(1),
            min_float: self.min_float,
            quiet_softmax: self.quiet_softmax,
        };
        shape.on_each(parallel)
    }

    /// This rank's heads of dense layers that all ranks hold alike: query, key, value and output. Local.
    ///
    /// # Errors
    /// [`DistError::Config`] if the ranks do not divide the heads, if the layers do not fit the heads or
    /// each other, and for dropout without a random stream.
    pub fn from_dense_linears(
        &self,
        [query, key, value, output]: [&Linear; 4],
        parallel: impl Into<TensorParallel>,
    ) -> Result<ParallelAttention> {
        let parallel = parallel.into();
        let shape = self.shape(&parallel)?;
        let dropout = DropoutConfig::new(self.dropout).init();
        let attention = ParallelAttention {
            query_key_value: ColumnParallelLinear::from_dense_sections(
                &[query, key, value],
                &parallel,
            )?,
            output: RowParallelLinear::from_dense(output, &parallel)?,
            dropout: SplitDropout::split(&dropout, &parallel, 1)?,
            shape,
        };
        let widths = [query, key, value, output].map(|layer| layer.weight.val().dims());
        let (d_model, memory) = (
            self.d_model,
            self.key_value_heads() * attention.shape.d_head,
        );
        let expected = [d_model, memory, memory, d_model].map(|width| [d_model, width]);
        if widths != expected {
            return Err(DistError::config(
                format!(
                    "{}: query, key, value and output are {widths:?}, not {expected:?}",
                    parallel.place()
                ),
                "the heads say how wide each layer is",
            ));
        }
        Ok(attention)
    }
}

impl AttentionShape {
    /// Of one rank, from that of all.
    fn on_each(mut self, parallel: &TensorParallel) -> Result<Self> {
        let (heads, memory) = (self.heads, self.key_value_heads);
        if heads == 0
            || memory == 0
            || !heads.is_multiple_of(memory)
            || heads * self.d_head != self.d_model
        {
            return Err(DistError::config(
                format!(
                    "{}: {heads} heads of {} features and {memory} heads of key and value for a width of {}",
                    parallel.place(),
                    self.d_head,
                    self.d_model
                ),
                "the heads make up the width, and each head of key and value serves as many of the query",
            ));
        }
        self.heads = parallel.divide("the number of heads", heads)?;
        self.key_value_heads = parallel.divide("the number of key and value heads", memory)?;
        Ok(self)
    }
}

impl ParallelAttention {
    /// This rank's heads of a dense module that all ranks hold alike. Local.
    ///
    /// # Errors
    /// [`DistError::Config`] if the ranks do not divide the heads, if some of query, key and value have a
    /// bias and some none, and for dropout without a random stream.
    pub fn from_dense(
        dense: &MultiHeadAttention,
        parallel: impl Into<TensorParallel>,
    ) -> Result<Self> {
        let parallel = parallel.into();
        let shape = AttentionShape {
            d_model: dense.d_model,
            heads: dense.n_heads,
            key_value_heads: dense.n_heads,
            d_head: dense.d_k,
            min_float: dense.min_float,
            quiet_softmax: dense.quiet_softmax,
        };
        let sections = [&dense.query, &dense.key, &dense.value];
        Ok(Self {
            query_key_value: ColumnParallelLinear::from_dense_sections(&sections, &parallel)?,
            output: RowParallelLinear::from_dense(&dense.output, &parallel)?,
            dropout: SplitDropout::split(&dense.dropout, &parallel, 1)?,
            shape: shape.on_each(&parallel)?,
        })
    }

    /// The dense layers: query, key, value and output. Collective: all_gathers.
    ///
    /// # Errors
    /// What the group met.
    pub fn to_dense_linears(&self) -> Result<[Linear; 4]> {
        let mut sections = self.query_key_value.to_dense_sections()?;
        let value = sections.swap_remove(2);
        let key = sections.swap_remove(1);
        let query = sections.swap_remove(0);
        Ok([query, key, value, self.output.to_dense()?])
    }

    /// The dense module. Collective: all_gathers.
    ///
    /// # Errors
    /// [`DistError::Config`] for grouped queries, which Burn's module does not have, before anything is
    /// sent; else what the group met.
    pub fn to_dense(&self) -> Result<MultiHeadAttention> {
        let AttentionShape {
            d_model,
            heads,
            key_value_heads,
            ..
        } = self.shape;
        if heads != key_value_heads {
            return Err(DistError::config(
                "Burn's MultiHeadAttention has as many heads of key and value as of the query",
                "take to_dense_linears",
            ));
        }
        let device = self.output.weight.base().device();
        let n = self.output.parallel().group().size();
        let [query, key, value, output] = self.to_dense_linears()?;
        let mut dense = MultiHeadAttentionConfig::new(d_model, heads * n)
            .with_min_float(self.shape.min_float)
            .with_quiet_softmax(self.shape.quiet_softmax)
            .init(&device);
        dense.query = query;
        dense.key = key;
        dense.value = value;
        dense.output = output;
        dense.dropout = self.dropout.dense().clone();
        Ok(dense)
    }

    /// `[b, s, h] -> [b, s, h]`, or `[b, s/n, h]` in and out where activations are split along the sequence;
    /// the weights are those of this rank's heads, `[b, heads/n, s, t]`.
    ///
    /// # Errors
    /// As the linear layers.
    #[track_caller]
    pub fn forward(&self, input: AttentionInput) -> Result<MhaOutput> {
        let [query, key, value] = match input.memory {
            None => self.project(input.query)?,
            Some((key, value)) => {
                let layer = &self.query_key_value;
                [
                    layer.forward_section(0, input.query)?,
                    layer.forward_section(1, key)?,
                    layer.forward_section(2, value)?,
                ]
            }
        };
        let query = split_heads(query, self.shape.heads);
        let key = self.serve(split_heads(key, self.shape.key_value_heads));
        let value = self.serve(split_heads(value, self.shape.key_value_heads));
        let scores = query
            .matmul(key.transpose())
            .div_scalar((self.shape.d_head as f32).sqrt());
        let weights = self.weights(scores, input.mask_pad, input.mask_attn);
        let context = weights.clone().matmul(value);
        let [batch, heads, seq, d_head] = context.dims();
        let context = context
            .swap_dims(1, 2)
            .reshape([batch, seq, heads * d_head]);
        Ok(MhaOutput {
            weights,
            context: self.output.forward(context)?,
        })
    }

    fn project(&self, input: Tensor<3>) -> Result<[Tensor<3>; 3]> {
        let sections = self.query_key_value.forward_sections(input)?;
        Ok(sections.try_into().expect("invariant: three sections"))
    }

    /// Each head of key and value beside the heads of the query that it serves.
    fn serve(&self, tensor: Tensor<4>) -> Tensor<4> {
        let [batch, heads, seq, d_head] = tensor.dims();
        match self.shape.heads / heads {
            1 => tensor,
            times => tensor.unsqueeze_dim::<5>(2).repeat_dim(2, times).reshape([
                batch,
                heads * times,
                seq,
                d_head,
            ]),
        }
    }

    fn weights(
        &self,
        mut scores: Tensor<4>,
        mask_pad: Option<Tensor<2, Bool>>,
        mask_attn: Option<Tensor<3, Bool>>,
    ) -> Tensor<4> {
        let min = self.shape.min_float;
        if let Some(mask) = mask_pad {
            let [batch, seq] = mask.dims();
            scores = scores.mask_fill(mask.reshape([batch, 1, 1, seq]), min);
        }
        if let Some(mask) = mask_attn {
            let [batch, seq, other] = mask.dims();
            scores = scores.mask_fill(mask.reshape([batch, 1, seq, other]), min);
        }
        let weights = match self.shape.quiet_softmax {
            true => quiet_softmax(scores, 3),
            false => softmax(scores, 3),
        };
        self.dropout.forward(weights)
    }
}

/// `[b, s, heads d] -> [b, heads, s, d]`.
fn split_heads(tensor: Tensor<3>, heads: usize) -> Tensor<4> {
    let [batch, seq, width] = tensor.dims();
    tensor
        .reshape([batch, seq, heads, width / heads])
        .swap_dims(1, 2)
}
