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
    AttentionInput, GatedFeedForward, ParallelAttention, ParallelAttentionConfig, ParallelEncoder,
    ParallelFeedForward,
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

#[derive(Module, Debug)]
struct DenseGrouped {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
}

impl DenseGrouped {
    /// Eight heads of the query, four of key and value, each of which serves two.
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let heads = |x: Tensor<3>, heads: usize| {
            let [b, s, width] = x.dims();
            x.reshape([b, s, heads, width / heads]).swap_dims(1, 2)
        };
        let serve = |x: Tensor<4>| {
            let heads: Vec<_> = (0..8)
                .map(|head| x.clone().narrow(1, head / 2, 1))
                .collect();
            Tensor::cat(heads, 1)
        };
        let query = heads(self.query.forward(x.clone()), 8);
        let key = serve(heads(self.key.forward(x.clone()), 4));
        let value = serve(heads(self.value.forward(x), 4));
        let scores = query.matmul(key.transpose()).div_scalar(2f32.sqrt());
        let context = burn::tensor::activation::softmax(scores, 3).matmul(value);
        let [b, a, s, d] = context.dims();
        self.output
            .forward(context.swap_dims(1, 2).reshape([b, s, a * d]))
    }
}

#[test]
fn grouped_queries() {
    let linear = |i, o| LinearConfig::new(i, o).init(&device());
    let dense = DenseGrouped {
        query: linear(16, 16),
        key: linear(16, 8),
        value: linear(16, 8),
        output: linear(16, 16),
    };
    let input = |dtype| fixed([2, 4, 16], 6, dtype, &device());
    compare(
        &dense,
        |dense, dtype| loss_of(dense.forward(input(dtype)), dtype),
        |dense, parallel| {
            let [query, key, value] = [&dense.query, &dense.key, &dense.value];
            let linears = [query, key, value, &dense.output];
            ParallelAttentionConfig::new(16, 8)
                .with_n_key_value_heads(Some(4))
                .with_dropout(0.0)
                .from_dense_linears(linears, parallel)
        },
        |split, dtype| {
            let parallel = split.output.parallel();
            let x = parallel.split_sequence(input(dtype))?;
            let context = split.forward(AttentionInput::self_attn(x))?.context;
            Ok(loss_of(parallel.join_sequence(context)?, dtype))
        },
        |split| {
            let [query, key, value, output] = split.to_dense_linears()?;
            Ok(DenseGrouped {
                query,
                key,
                value,
                output,
            })
        },
    );
}

#[test]
fn what_is_put_together_again_trains_as_before() {
    // Each dense parameter comes back under its own identifier: gradients find it.
    let dense = crate::settled(
        &MultiHeadAttentionConfig::new(12, 4)
            .with_dropout(0.0)
            .init(&device()),
    );
    let step = |mha: burn::nn::attention::MultiHeadAttention| {
        let output = mha.forward(MhaInput::self_attn(input(DType::F32))).context;
        let gradients = loss_of(output, DType::F32).backward();
        let gradients = burn::optim::GradientsParams::from_grads(gradients, &mha);
        let mut optimizer = burn::optim::SgdConfig::new().init();
        crate::values(&optimizer.step(1.0, mha, gradients))
    };
    let expected = step(crate::cast(&dense, DType::F32));
    let results = tests::run_group(2, |group| {
        let split = ParallelAttention::from_dense(&crate::cast(&dense, DType::F32), &group)?;
        Ok(step(split.to_dense()?))
    });
    for result in results {
        assert!(result.expect("no fault") == expected);
    }
}
