//! [`RowParallelLinear`]: a linear layer split by input features.

use burn::config::Config;
use burn::module::{Module, Param};
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::module::linear;
use burn::tensor::{Device, Tensor};

use super::drawn_parts::{Draw, DrawnSection, lazy_linear};
use super::{TensorParallel, parts};
use crate::collectives::{reduce_from_region, reduce_scatter_from_region, scatter_to_region};
use crate::error::Result;
use crate::mesh::MeshAxis;
use crate::placement::LayerPlacement;

/// A linear layer split by input features: `Y = sum over i of X_i W_i, + b`.
///
/// Rank `i` holds `W_i` of shape `[d/n, h]` and the whole `b` of shape `[h]`, which is added once, after the
/// sum. The input is this rank's part `X_i` of shape `[.., d/n]`, as a
/// [`ColumnParallelLinear`](super::ColumnParallelLinear) gives it, or whole.
///
/// Forward: an all_reduce, or, if activations are split along the sequence, a reduce_scatter. Backward:
/// nothing, or an all_gather. (Megatron-LM, arXiv 1909.08053, section 3, the function g.)
#[derive(Module, Debug)]
pub struct RowParallelLinear {
    placement: LayerPlacement,
    /// `[d/n, h]`, this rank's rows.
    pub weight: Param<Tensor<2>>,
    /// `[h]`.
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    parallel: TensorParallel,
    input_is_split: bool,
}

/// Makes a [`RowParallelLinear`] without its dense layer.
#[derive(Config, Debug)]
pub struct RowParallelLinearConfig {
    /// d: input features, over all ranks.
    pub d_input: usize,
    /// h: output features.
    pub d_output: usize,
    /// Whether there is a bias.
    #[config(default = true)]
    pub bias: bool,
    /// How parameters are drawn, as in Burn's `LinearConfig`.
    #[config(
        default = "Initializer::KaimingUniform{gain: 1.0 / 3f64.sqrt(), fan_out_only: false}"
    )]
    pub initializer: Initializer,
}

impl RowParallelLinearConfig {
    /// This rank's part, drawn when it is first read: the values that `LinearConfig` draws from the same
    /// seed, without ever holding them whole. Local.
    ///
    /// # Errors
    /// [`DistError::Config`](crate::DistError::Config) if the ranks do not divide the input features, or
    /// for an initializer that cannot draw in parts.
    pub fn init(
        &self,
        parallel: impl Into<TensorParallel>,
        device: &Device,
    ) -> Result<RowParallelLinear> {
        let parallel = parallel.into();
        let len = parallel.divide("the number of input features", self.d_input)?;
        let index = parallel.group().index();
        let weight = Draw {
            initializer: self.initializer.clone(),
            rows: self.d_input,
            columns: self.d_output,
            fan_in: Some(self.d_input),
            fan_out: Some(self.d_output),
        };
        weight.check()?;
        let bias = self.bias.then(|| Draw {
            rows: 1,
            ..weight.clone()
        });
        let section = DrawnSection {
            weight,
            bias,
            keep_rows: index * len..(index + 1) * len,
            keep_columns: 0..self.d_output,
        };
        let (weight, bias) = lazy_linear(vec![section], device);
        Ok(RowParallelLinear {
            placement: placement(&parallel, self.bias),
            weight,
            bias,
            parallel,
            input_is_split: true,
        })
    }
}

fn placement(parallel: &TensorParallel, has_bias: bool) -> LayerPlacement {
    let placement = LayerPlacement::new(MeshAxis::Tp, parallel.group()).shard("weight", 0);
    match has_bias {
        true => placement.replicate("bias"),
        false => placement,
    }
}

impl RowParallelLinear {
    /// This rank's rows of a dense layer that all ranks hold alike. Local.
    ///
    /// # Errors
    /// [`DistError::Config`](crate::DistError::Config) if the ranks do not divide the input features.
    pub fn from_dense(dense: &Linear, parallel: impl Into<TensorParallel>) -> Result<Self> {
        let parallel = parallel.into();
        let whole = parts::values(&dense.weight);
        parallel.divide("the number of input features", whole.dims()[0])?;
        let (index, n) = (parallel.group().index(), parallel.group().size());
        let bias = dense.bias.as_ref();
        Ok(Self {
            placement: placement(&parallel, bias.is_some()),
            weight: parts::parameter(parts::part(whole, 0, index, n), &dense.weight),
            bias: bias.map(|bias| parts::parameter(parts::values(bias), bias)),
            parallel,
            input_is_split: true,
        })
    }

    /// The dense layer, with all parameters. Collective: an all_gather.
    ///
    /// # Errors
    /// What the group met.
    pub fn to_dense(&self) -> Result<Linear> {
        let device = self.weight.base().device();
        let whole = parts::joined(parts::values(&self.weight), 0, &self.parallel)?;
        let [d_input, d_output] = whole.dims();
        let mut dense = LinearConfig::new(d_input, d_output)
            .with_bias(false)
            .init(&device);
        dense.weight = parts::parameter(whole, &self.weight);
        let bias = self.bias.as_ref();
        dense.bias = bias.map(|bias| parts::parameter(parts::values(bias), bias));
        Ok(dense)
    }

    /// `false`: the input is whole, `[.., d]` on every rank. Default `true`.
    pub fn input_is_split(mut self, on: bool) -> Self {
        self.input_is_split = on;
        self
    }

    /// `[.., d/n] -> [.., h]`; see the type.
    ///
    /// # Errors
    /// As [`ColumnParallelLinear::forward`](super::ColumnParallelLinear::forward); a sequence that the
    /// ranks do not divide, where activations are split along it.
    #[track_caller]
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Result<Tensor<D>> {
        let (weight, bias) = (self.weight.val(), self.bias.as_ref().map(Param::val));
        let group = self.parallel.group();
        if group.size() == 1 {
            return Ok(linear(input, weight, bias));
        }
        let input = match self.input_is_split {
            true => input,
            false => scatter_to_region(input, D - 1, group)?,
        };
        self.parallel.check_input(&input, &weight)?;
        let partial = linear(input, weight, None);
        if !self.parallel.is_sequence_parallel() {
            let sum = reduce_from_region(partial, group)?;
            return Ok(match bias {
                Some(bias) => sum + bias.unsqueeze(),
                None => sum,
            });
        }
        let Some(bias) = bias else {
            return reduce_scatter_from_region(partial, D - 2, group);
        };
        // The bias meets this rank's tokens only, but its gradient is that of all tokens: those come by
        // before the sum, where a bias that is zero takes them.
        let fixed = bias.clone().detach();
        let nothing = bias - fixed.clone();
        let sum = reduce_scatter_from_region(partial + nothing.unsqueeze(), D - 2, group)?;
        Ok(sum + fixed.unsqueeze())
    }

    /// The group and its settings.
    pub fn parallel(&self) -> &TensorParallel {
        &self.parallel
    }
}
