//! Burn's attention, feed-forward and transformer encoder.

use burn::module::Module;
use burn::nn::activation::ActivationConfig;
use burn::nn::attention::{MhaInput, MultiHeadAttentionConfig, generate_autoregressive_mask};
use burn::nn::transformer::{
    PositionWiseFeedForwardConfig, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::silu;
use burn::tensor::{Bool, DType, Device, Tensor};
use burn_dist::tensor_parallel::{
    AttentionInput, GatedFeedForward, ParallelAttention, ParallelEncoder, ParallelFeedForward,
};

use super::{compare, fixed};

fn device() -> Device {
    Device::flex().autodiff()
}

fn loss_of(output: Tensor<3>, dtype: DType) -> Tensor<1> {
    let weight = fixed(output.dims(), 78, dtype, &output.device());
    (output.clone() * weight + output.powi_scalar(2).mul_scalar(0.1)).mean()
}

/// b = 3, s = 8, h = 12, of 4 heads of 3.
fn input(dtype: DType) -> Tensor<3> {
    fixed([3, 8, 12], 2, dtype, &device())
}

fn causal() -> Tensor<3, Bool> {
    generate_autoregressive_mask(3, 8, &device())
}

/// The last tokens of each sequence are padding.
fn padding() -> Tensor<2, Bool> {
    let lens = [8, 5, 1];
    let rows = lens.map(|len| std::array::from_fn::<bool, 8, _>(|token| token >= len));
    Tensor::from_data(rows, &device())
}

#[test]
fn attention() {
    for quiet in [false, true] {
        let dense = MultiHeadAttentionConfig::new(12, 4)
            .with_dropout(0.0)
            .with_quiet_softmax(quiet)
            .init(&device());
        compare(
            &dense,
            |dense, dtype| {
                let input = MhaInput::self_attn(input(dtype));
                let input = input.mask_attn(causal()).mask_pad(padding());
                loss_of(dense.forward(input).context, dtype)
            },
            |dense, parallel| ParallelAttention::from_dense(dense, parallel),
            |split, dtype| {
                let parallel = split.output.parallel();
                let input = AttentionInput::self_attn(parallel.split_sequence(input(dtype))?);
                let input = input.mask_attn(causal()).mask_pad(padding());
                let context = split.forward(input)?.context;
                Ok(loss_of(parallel.join_sequence(context)?, dtype))
            },
            ParallelAttention::to_dense,
        );
    }
}

#[test]
fn attention_to_another_sequence() {
    let dense = MultiHeadAttentionConfig::new(12, 4)
        .with_dropout(0.0)
        .init(&device());
    let memory = |seed, dtype| fixed([3, 4, 12], seed, dtype, &device());
    compare(
        &dense,
        |dense, dtype| {
            let input = MhaInput::new(input(dtype), memory(5, dtype), memory(6, dtype));
            loss_of(dense.forward(input).context, dtype)
        },
        |dense, parallel| ParallelAttention::from_dense(dense, parallel),
        |split, dtype| {
            let parallel = split.output.parallel();
            let part = |whole| parallel.split_sequence(whole);
            let input = AttentionInput::new(
                part(input(dtype))?,
                part(memory(5, dtype))?,
                part(memory(6, dtype))?,
            );
            let context = split.forward(input)?.context;
            Ok(loss_of(parallel.join_sequence(context)?, dtype))
        },
        ParallelAttention::to_dense,
    );
}

#[test]
fn feed_forward() {
    for activation in [ActivationConfig::Gelu, ActivationConfig::Sigmoid] {
        let dense = PositionWiseFeedForwardConfig::new(12, 20)
            .with_dropout(0.0)
            .with_activation(activation)
            .init(&device());
        compare(
            &dense,
            |dense, dtype| loss_of(dense.forward(input(dtype)), dtype),
            |dense, parallel| ParallelFeedForward::from_dense(dense, parallel),
            |split, dtype| {
                let parallel = split.linear_outer.parallel();
                let fed = split.forward(parallel.split_sequence(input(dtype))?)?;
                Ok(loss_of(parallel.join_sequence(fed)?, dtype))
            },
            ParallelFeedForward::to_dense,
        );
    }
}

#[derive(Module, Debug)]
struct DenseGated {
    gate: Linear,
    up: Linear,
    down: Linear,
}

#[test]
fn gated_feed_forward() {
    for bias in [false, true] {
        let linear = |i, o| LinearConfig::new(i, o).with_bias(bias).init(&device());
        let dense = DenseGated {
            gate: linear(12, 20),
            up: linear(12, 20),
            down: linear(20, 12),
        };
        compare(
            &dense,
            |dense, dtype| {
                let gate = silu(dense.gate.forward(input(dtype)));
                let fed = dense.down.forward(gate * dense.up.forward(input(dtype)));
                loss_of(fed, dtype)
            },
            |dense, parallel| {
                let layers = [&dense.gate, &dense.up, &dense.down];
                GatedFeedForward::from_dense(layers, None, parallel)
            },
            |split, dtype| {
                let parallel = split.down.parallel();
                let fed = split.forward(parallel.split_sequence(input(dtype))?)?;
                Ok(loss_of(parallel.join_sequence(fed)?, dtype))
            },
            |split| {
                let [gate, up, down] = split.to_dense()?;
                Ok(DenseGated { gate, up, down })
            },
        );
    }
}

#[test]
fn transformer_encoder() {
    for norm_first in [false, true] {
        let dense = TransformerEncoderConfig::new(12, 20, 4, 2)
            .with_dropout(0.0)
            .with_norm_first(norm_first)
            .init(&device());
        compare(
            &dense,
            |dense, dtype| {
                let input = TransformerEncoderInput::new(input(dtype));
                loss_of(dense.forward(input.mask_pad(padding())), dtype)
            },
            |dense, parallel| ParallelEncoder::from_dense(dense, parallel),
            |split, dtype| {
                Ok(loss_of(
                    split.forward(input(dtype), Some(padding()), None)?,
                    dtype,
                ))
            },
            ParallelEncoder::to_dense,
        );
    }
}
