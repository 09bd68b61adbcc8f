//! [`ColumnParallelLinear`]: a linear layer split by output features.

use burn::config::Config;
use burn::module::{Module, Param, ParamId};
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::module::linear;
use burn::tensor::{Device, Tensor};

use super::drawn_parts::{Draw, DrawnSection, lazy_linear};
use super::{TensorParallel, VocabularyPart, parts};
use crate::backend;
use crate::collectives::gather_from_region;
use crate::error::{DistError, Result};
use crate::mesh::MeshAxis;
use crate::placement::LayerPlacement;

/// Several linear layers of one input as one, each split by output features: `Y_i = X W_i + b_i`.
///
/// `W = [W_1 | .. | W_n]`; rank `i` holds `W_i` of shape `[h, d/n]` and `b_i` of shape `[d/n]`. With several
/// sections (query, key and value; gate and up) it holds its part of each, side by side, so that one
/// product and one collective serve all of them.
///
/// Forward: nothing is sent, or an all_gather of the input if activations are split along the sequence; with
/// gathered output another one for each section. Backward: an all_reduce, or reduce_scatter, of the input's
/// gradient, beside the product that gives the weight's; with
/// [`regather`](super::TensorParallel::regather) an all_gather of the input before it. (Megatron-LM, arXiv 1909.08053, section 3; arXiv 2205.05198, section 4.2.2.)
#[derive(Module, Debug)]
pub struct ColumnParallelLinear {
    placement: LayerPlacement,
    /// `[h, d/n]`, this rank's columns of every section.
    pub weight: Param<Tensor<2>>,
    /// `[d/n]`.
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    parallel: TensorParallel,
    #[module(skip)]
    sections: Vec<Section>,
    gather_output: bool,
}

/// A dense layer of which this is a part.
#[derive(Debug, Clone, Copy)]
struct Section {
    /// Output features, over all ranks.
    columns: usize,
    /// Identifiers of the dense parameters, which are not one parameter again.
    weight: ParamId,
    bias: ParamId,
}

/// Makes a [`ColumnParallelLinear`] without its dense layer.
#[derive(Config, Debug)]
pub struct ColumnParallelLinearConfig {
    /// h: input features.
    pub d_input: usize,
    /// d: output features of each section, over all ranks.
    pub d_outputs: Vec<usize>,
    /// Whether there is a bias.
    #[config(default = true)]
    pub bias: bool,
    /// How parameters are drawn, as in Burn's `LinearConfig`.
    #[config(
        default = "Initializer::KaimingUniform{gain: 1.0 / 3f64.sqrt(), fan_out_only: false}"
    )]
    pub initializer: Initializer,
    /// Pad output features with zeros where the ranks do not divide them: for a vocabulary.
    #[config(default = false)]
    pub pad: bool,
}

impl ColumnParallelLinearConfig {
    /// This rank's part, drawn when it is first read: the values that `LinearConfig` draws from the same
    /// seed, section by section, without ever holding them whole. Local.
    ///
    /// # Errors
    /// [`DistError::Config`] if the ranks do not divide a section, or for an initializer that cannot draw
    /// in parts.
    pub fn init(
        &self,
        parallel: impl Into<TensorParallel>,
        device: &Device,
    ) -> Result<ColumnParallelLinear> {
        let parallel = parallel.into();
        let index = parallel.group().index();
        let mut sections = Vec::new();
        for &columns in &self.d_outputs {
            let len = width(&parallel, columns, self.pad)?;
            let weight = Draw {
                initializer: self.initializer.clone(),
                rows: self.d_input,
                columns,
                fan_in: Some(self.d_input),
                fan_out: Some(columns),
            };
            weight.check()?;
            let bias = self.bias.then(|| Draw {
                rows: 1,
                ..weight.clone()
            });
            sections.push(DrawnSection {
                weight,
                bias,
                keep_rows: 0..self.d_input,
                keep_columns: index * len..(index + 1) * len,
            });
        }
        if sections.is_empty() {
            return Err(no_sections(&parallel));
        }
        let (weight, bias) = lazy_linear(sections, device);
        Ok(ColumnParallelLinear {
            placement: placement(&parallel, self.bias),
            weight,
            bias,
            parallel,
            sections: self.d_outputs.iter().copied().map(Section::new).collect(),
            gather_output: false,
        })
    }
}

impl Section {
    fn new(columns: usize) -> Self {
        Self {
            columns,
            weight: ParamId::new(),
            bias: ParamId::new(),
        }
    }
}

fn placement(parallel: &TensorParallel, has_bias: bool) -> LayerPlacement {
    let placement = LayerPlacement::new(MeshAxis::Tp, parallel.group()).shard("weight", 1);
    match has_bias {
        true => placement.shard("bias", 0),
        false => placement,
    }
}

fn no_sections(parallel: &TensorParallel) -> DistError {
    DistError::config(
        format!("{}: a column layer of no sections", parallel.place()),
        "give the output features of at least one",
    )
}

/// Columns per rank of a section.
fn width(parallel: &TensorParallel, whole: usize, pad: bool) -> Result<usize> {
    match pad {
        true => Ok(VocabularyPart::new(whole, 0, parallel.group().size()).rows),
        false => parallel.divide("the number of output features", whole),
    }
}

impl ColumnParallelLinear {
    /// This rank's columns of a dense layer that all ranks hold alike. Local.
    ///
    /// # Errors
    /// [`DistError::Config`] if the ranks do not divide the output features.
    pub fn from_dense(dense: &Linear, parallel: impl Into<TensorParallel>) -> Result<Self> {
        Self::from_dense_sections(&[dense], parallel)
    }

    /// As [`from_dense`](Self::from_dense), with columns of zeros at the end where the ranks do not divide
    /// them: for the layer that gives the logits of a vocabulary, which
    /// [`vocab_parallel_cross_entropy`](super::vocab_parallel_cross_entropy) then takes.
    ///
    /// # Errors
    /// [`DistError::Config`] for no layer.
    pub fn from_dense_vocabulary(
        dense: &Linear,
        parallel: impl Into<TensorParallel>,
    ) -> Result<Self> {
        Self::cut(&[dense], parallel.into(), true)
    }

    /// This rank's columns of several dense layers of one input, as one product. Local.
    ///
    /// # Errors
    /// [`DistError::Config`] if the ranks do not divide the output features of a layer, if input features
    /// differ, or if some have a bias and some none.
    pub fn from_dense_sections(
        dense: &[&Linear],
        parallel: impl Into<TensorParallel>,
    ) -> Result<Self> {
        Self::cut(dense, parallel.into(), false)
    }

    fn cut(dense: &[&Linear], parallel: TensorParallel, pad: bool) -> Result<Self> {
        let Some(first) = dense.first() else {
            return Err(no_sections(&parallel));
        };
        let [d_input, _] = first.weight.val().dims();
        let (index, n) = (parallel.group().index(), parallel.group().size());
        let (mut weights, mut biases, mut sections) = (Vec::new(), Vec::new(), Vec::new());
        for layer in dense {
            let whole = parts::values(&layer.weight);
            let [rows, columns] = whole.dims();
            let trained = |layer: &Linear| {
                let bias = layer.bias.as_ref().map(|bias| bias.is_require_grad());
                (layer.weight.is_require_grad(), bias)
            };
            if rows != d_input || trained(layer) != trained(first) {
                let (own, other) = (trained(first), trained(layer));
                return Err(DistError::config(
                    format!(
                        "{}: layers of {d_input} and {rows} input features, bias: {} and {}, trained: {own:?} and {other:?}, cannot be one product",
                        parallel.place(),
                        own.1.is_some(),
                        other.1.is_some(),
                    ),
                    "give all of them a bias or none, and train all or none; or split them one by one",
                ));
            }
            let padded = width(&parallel, columns, pad)? * n;
            weights.push(parts::part(parts::padded(whole, 1, padded), 1, index, n));
            if let Some(bias) = &layer.bias {
                let bias = parts::padded(parts::values(bias), 0, padded);
                biases.push(parts::part(bias, 0, index, n));
            }
            sections.push(Section {
                columns,
                weight: layer.weight.id,
                bias: layer
                    .bias
                    .as_ref()
                    .map_or_else(ParamId::new, |bias| bias.id),
            });
        }
        let bias = first
            .bias
            .as_ref()
            .map(|bias| parts::parameter(Tensor::cat(biases, 0), bias));
        Ok(Self {
            placement: placement(&parallel, first.bias.is_some()),
            weight: parts::parameter(Tensor::cat(weights, 1), &first.weight),
            bias,
            parallel,
            sections,
            gather_output: false,
        })
    }

    /// The dense layer of the first section, with all parameters. Collective: all_gathers.
    ///
    /// # Errors
    /// What the group met.
    pub fn to_dense(&self) -> Result<Linear> {
        let mut sections = self.to_dense_sections()?;
        Ok(sections.swap_remove(0))
    }

    /// The dense layers of all sections. Collective: all_gathers.
    ///
    /// # Errors
    /// What the group met.
    pub fn to_dense_sections(&self) -> Result<Vec<Linear>> {
        let weight = parts::values(&self.weight);
        let bias = self.bias.as_ref().map(parts::values);
        let device = self.weight.base().device();
        let [d_input, _] = weight.dims();
        let mut start = 0;
        let mut dense = Vec::new();
        for (section, len) in self.sections.iter().zip(self.section_widths()) {
            let columns = section.columns;
            let own = weight.clone().narrow(1, start, len);
            let whole = parts::joined(own, 1, &self.parallel)?.narrow(1, 0, columns);
            let mut layer = LinearConfig::new(d_input, columns)
                .with_bias(false)
                .init(&device);
            layer.weight = parts::renamed(parts::parameter(whole, &self.weight), section.weight);
            if let (Some(values), Some(bias)) = (&bias, &self.bias) {
                let own = values.clone().narrow(0, start, len);
                let whole = parts::joined(own, 0, &self.parallel)?.narrow(0, 0, columns);
                layer.bias = Some(parts::renamed(parts::parameter(whole, bias), section.bias));
            }
            start += len;
            dense.push(layer);
        }
        Ok(dense)
    }

    /// `true`: the output is gathered, `[.., d]` on every rank, without padding. Default `false`.
    pub fn gather_output(mut self, on: bool) -> Self {
        self.gather_output = on;
        self
    }

    /// Columns that this rank holds of each section.
    fn section_widths(&self) -> impl Iterator<Item = usize> {
        let n = self.parallel.group().size();
        self.sections
            .iter()
            .map(move |section| section.columns.div_ceil(n))
    }

    /// `[.., h] -> [.., d/n]`, or `[.., d]` with gathered output; see the type.
    ///
    /// # Errors
    /// What the group met. In the backward pass a failure poisons the group, turns the gradient to NaN,
    /// and is returned by the next call.
    #[track_caller]
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Result<Tensor<D>> {
        let (weight, bias) = (self.weight.val(), self.bias.as_ref().map(Param::val));
        if self.parallel.group().size() == 1 {
            return Ok(linear(input, weight, bias));
        }
        self.parallel.check_input(&input, &weight)?;
        let output = backend::column_product(input, weight, self.parallel.column::<D>())?;
        let output = match bias {
            Some(bias) => output + bias.unsqueeze(),
            None => output,
        };
        if !self.gather_output {
            return Ok(output);
        }
        let parts = self.cut_sections(output).into_iter().zip(&self.sections);
        let whole = parts.map(|(own, section)| {
            let gathered = gather_from_region(own, D - 1, self.parallel.group())?;
            Ok(gathered.narrow(D - 1, 0, section.columns))
        });
        let whole = whole.collect::<Result<Vec<_>>>()?;
        Ok(Tensor::cat(whole, D - 1))
    }

    /// `[.., h] -> [.., d/n]` of one section alone.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    #[track_caller]
    pub fn forward_section<const D: usize>(
        &self,
        section: usize,
        input: Tensor<D>,
    ) -> Result<Tensor<D>> {
        let widths: Vec<usize> = self.section_widths().collect();
        let (start, len) = (widths[..section].iter().sum(), widths[section]);
        let weight = self.weight.val().narrow(1, start, len);
        let bias = self
            .bias
            .as_ref()
            .map(|bias| bias.val().narrow(0, start, len));
        if self.parallel.group().size() == 1 {
            return Ok(linear(input, weight, bias));
        }
        self.parallel.check_input(&input, &weight)?;
        let output = backend::column_product(input, weight, self.parallel.column::<D>())?;
        Ok(match bias {
            Some(bias) => output + bias.unsqueeze(),
            None => output,
        })
    }

    /// `[.., h] -> ` one `[.., d/n]` for each section.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    #[track_caller]
    pub fn forward_sections<const D: usize>(&self, input: Tensor<D>) -> Result<Vec<Tensor<D>>> {
        let output = self.forward(input)?;
        Ok(self.cut_sections(output))
    }

    fn cut_sections<const D: usize>(&self, output: Tensor<D>) -> Vec<Tensor<D>> {
        let mut start = 0;
        let widths = self.section_widths();
        let cut = widths.map(|len| {
            let section = output.clone().narrow(D - 1, start, len);
            start += len;
            section
        });
        cut.collect()
    }

    /// The group and its settings.
    pub fn parallel(&self) -> &TensorParallel {
        &self.parallel
    }
}
