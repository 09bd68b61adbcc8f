//! Linear layers, embedding, norm.

use burn::module::Module;
use burn::nn::{
    Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, RmsNorm,
    RmsNormConfig,
};
use burn::tensor::activation::gelu;
use burn::tensor::{DType, Device, Int, Tensor};
use burn_dist::tensor_parallel::{
    ColumnParallelLinear, RowParallelLinear, SequenceParallel, TensorParallel,
    VocabParallelEmbedding,
};

use super::{compare, fixed};

fn device() -> Device {
    Device::flex().autodiff()
}

/// A loss that looks at every element, each in its own way.
fn loss_of(output: Tensor<3>, dtype: DType) -> Tensor<1> {
    let weight = fixed(output.dims(), 77, dtype, &Device::flex());
    let weight = Tensor::from_data(weight.into_data(), (&output.device(), dtype));
    (output.clone() * weight + output.powi_scalar(2).mul_scalar(0.1)).mean()
}

#[derive(Module, Debug)]
struct DenseMlp {
    up: Linear,
    down: Linear,
}

#[derive(Module, Debug)]
struct SplitMlp {
    up: ColumnParallelLinear,
    down: RowParallelLinear,
    #[module(skip)]
    parallel: TensorParallel,
}

/// b = 3, s = 4, h = 5, d = 12.
fn input(dtype: DType) -> Tensor<3> {
    fixed([3, 4, 5], 1, dtype, &device())
}

fn compare_mlp(bias: bool) {
    let linear = |i, o| LinearConfig::new(i, o).with_bias(bias).init(&device());
    device().seed(3);
    let dense = DenseMlp {
        up: linear(5, 12),
        down: linear(12, 5),
    };
    compare(
        &dense,
        |dense, dtype| {
            let hidden = gelu(dense.up.forward(input(dtype)));
            loss_of(dense.down.forward(hidden), dtype)
        },
        |dense, parallel| {
            Ok(SplitMlp {
                up: ColumnParallelLinear::from_dense(&dense.up, parallel)?,
                down: RowParallelLinear::from_dense(&dense.down, parallel)?,
                parallel: parallel.clone(),
            })
        },
        |split, dtype| {
            let x = split.parallel.split_sequence(input(dtype))?;
            let y = split.down.forward(gelu(split.up.forward(x)?))?;
            Ok(loss_of(split.parallel.join_sequence(y)?, dtype))
        },
        |split| {
            Ok(DenseMlp {
                up: split.up.to_dense()?,
                down: split.down.to_dense()?,
            })
        },
    );
}

#[test]
fn a_column_and_a_row_layer_are_two_dense_ones() {
    compare_mlp(true);
}

#[test]
fn and_without_bias() {
    compare_mlp(false);
}

#[test]
fn whole_inputs_and_outputs_at_the_edges() {
    // A column layer that gathers, then a row layer that cuts its input.
    let dense = DenseMlp {
        up: LinearConfig::new(5, 8).init(&device()),
        down: LinearConfig::new(8, 5).init(&device()),
    };
    compare(
        &dense,
        |dense, dtype| {
            let hidden = gelu(dense.up.forward(input(dtype)));
            loss_of(dense.down.forward(hidden), dtype)
        },
        |dense, parallel| {
            // Whole tensors on both sides: no sequence parallelism.
            let parallel = parallel.clone().sequence_parallel(false);
            Ok(SplitMlp {
                up: ColumnParallelLinear::from_dense(&dense.up, &parallel)?.gather_output(true),
                down: RowParallelLinear::from_dense(&dense.down, &parallel)?.input_is_split(false),
                parallel,
            })
        },
        |split, dtype| {
            let y = split.down.forward(gelu(split.up.forward(input(dtype))?))?;
            Ok(loss_of(y, dtype))
        },
        |split| {
            Ok(DenseMlp {
                up: split.up.to_dense()?,
                down: split.down.to_dense()?,
            })
        },
    );
}

#[test]
fn one_of_the_two_layers_alone() {
    // Sequences of 4 in and out; the width in the middle is whole, as the output of a column layer is gathered.
    let dense = LinearConfig::new(5, 8).init(&device());
    compare(
        &dense,
        |dense, dtype| loss_of(dense.forward(input(dtype)), dtype),
        |dense, parallel| Ok(ColumnParallelLinear::from_dense(dense, parallel)?.gather_output(true)),
        |split, dtype| {
            let x = split.parallel().split_sequence(input(dtype))?;
            Ok(loss_of(split.forward(x)?, dtype))
        },
        ColumnParallelLinear::to_dense,
    );
}

#[derive(Module, Debug)]
struct DenseTokens {
    embedding: Embedding,
    layer_norm: LayerNorm,
    rms_norm: RmsNorm,
}

#[derive(Module, Debug)]
struct SplitTokens {
    embedding: VocabParallelEmbedding,
    layer_norm: SequenceParallel<LayerNorm>,
    rms_norm: SequenceParallel<RmsNorm>,
}

fn tokens() -> Tensor<2, Int> {
    Tensor::from_data([[0, 1, 2, 3], [6, 6, 4, 5], [0, 6, 0, 2]], &device())
}

#[test]
fn an_embedding_of_a_vocabulary_that_no_number_divides_and_norms_of_split_tokens() {
    let dense = DenseTokens {
        embedding: EmbeddingConfig::new(7, 6).init(&device()),
        layer_norm: LayerNormConfig::new(6).init(&device()),
        rms_norm: RmsNormConfig::new(6).init(&device()),
    };
    compare(
        &dense,
        |dense, dtype| {
            let x = dense.layer_norm.forward(dense.embedding.forward(tokens()));
            loss_of(dense.rms_norm.forward(x.tanh()), dtype)
        },
        |dense, parallel| {
            Ok(SplitTokens {
                embedding: VocabParallelEmbedding::from_dense(&dense.embedding, parallel)?,
                layer_norm: SequenceParallel::new(dense.layer_norm.clone(), parallel),
                rms_norm: SequenceParallel::new(dense.rms_norm.clone(), parallel),
            })
        },
        |split, dtype| {
            let x = split
                .layer_norm
                .forward(split.embedding.forward(tokens())?)?;
            let y = split.rms_norm.forward(x.tanh())?;
            Ok(loss_of(split.embedding.parallel().join_sequence(y)?, dtype))
        },
        |split| {
            Ok(DenseTokens {
                embedding: split.embedding.to_dense()?,
                layer_norm: split.layer_norm.layer.clone(),
                rms_norm: split.rms_norm.layer.clone(),
            })
        },
    );
}
