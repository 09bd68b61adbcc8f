//! Every layer of Burn with parameters, wrapped: the same numbers, and what it keeps of its gathered unit
//! between the passes.

use std::sync::Mutex;

use burn::module::Module;
use burn::nn::attention::{
    CrossAttentionConfig, MhaInput, MultiHeadAttentionConfig, generate_autoregressive_mask,
};
use burn::nn::conv::{
    Conv1dConfig, Conv2dConfig, Conv3dConfig, ConvTranspose1dConfig, ConvTranspose2dConfig,
    ConvTranspose3dConfig, DeformConv2dConfig,
};
use burn::nn::transformer::{
    PositionWiseFeedForwardConfig, TransformerDecoderConfig, TransformerDecoderInput,
    TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{
    BatchNormConfig, BiLstmConfig, EmbeddingConfig, GroupNormConfig, GruConfig, InstanceNormConfig,
    LayerNormConfig, Linear, LinearConfig, LinearLayout, LstmConfig, PReluConfig, RmsNormConfig,
    RnnConfig, SwiGluConfig,
};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_dist::data_parallel::ParameterTable;
use burn_zero::FullyShard;
use tests::run_group;

use crate::models::fill;
use crate::runs::bits;

/// Wide enough for a matrix that is not copied out of its unit.
const WIDE: usize = 144;
/// As a vector.
const LONG: usize = 17_000;

fn loss<L: Module>(
    model: &(L, Linear),
    forward: impl Fn(&L, &Device) -> Tensor<1>,
    device: &Device,
) -> Tensor<1> {
    let mean = forward(&model.0, device).reshape([1, 1]);
    model.1.forward(mean).sum()
}

/// Bytes that a layer keeps of its unit from the forward pass on.
fn check<L: Module + 'static>(
    init: impl Fn(&Device) -> L,
    forward: impl Fn(&L, &Device) -> Tensor<1> + Copy + Send + Sync,
    device: &Device,
) -> usize {
    device.seed(3);
    let start = (init(device), LinearConfig::new(1, 1).init(device));
    ParameterTable::of(&start).expect("nothing is wrapped");
    let step = |model, gradients| SgdConfig::new().init().step(0.1, model, gradients);
    let expected = {
        let model = start.clone().fork(device);
        let loss = loss(&model, forward, device);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        bits(&step(model, gradients))
    };
    assert!(bits(&start) != expected, "nothing was learnt");
    let start = Mutex::new(start);
    let found = run_group(2, |group| {
        let start = start.lock().expect("not poisoned").clone();
        let (sharded, model) = FullyShard::new(&group).least_unit_bytes(0).wrap(start)?;
        let pool = group.communicator().pool();
        // Both ranks see the same: the mean of two equal numbers is exact.
        let loss = loss(&model, forward, device);
        let kept = pool.used_bytes();
        let gradients = sharded.gradients(loss.backward(), &model)?;
        Ok((kept, bits(&step(model, gradients).materialize())))
    });
    let mut kept = 0;
    for found in found {
        let (bytes, parameters) = found.expect("no fault");
        assert!(parameters == expected, "other numbers");
        // The tail's unit is there: two numbers, and one of padding.
        kept = bytes - 8;
    }
    kept
}

/// Names of the layers that keep their units on this device.
fn keepers(device: &Device) -> Vec<&'static str> {
    let mut keepers = Vec::new();
    let mut layer = |name: &'static str, kept: usize| {
        println!("{name}: {kept} bytes kept");
        if kept > 0 {
            keepers.push(name);
        }
    };
    macro_rules! layer {
        ($name:literal, $init:expr, $forward:expr) => {
            layer($name, check($init, $forward, device));
        };
    }
    layer!(
        "linear",
        |d| LinearConfig::new(WIDE, WIDE).init(d),
        |l, d| l.forward(fill([3, WIDE], 1, d)).square().mean()
    );
    layer!(
        "linear, three dims",
        |d| LinearConfig::new(WIDE, WIDE).init(d),
        |l, d| l.forward(fill([2, 8, WIDE], 1, d)).square().mean()
    );
    layer!(
        "linear, columns",
        |d| LinearConfig::new(WIDE, WIDE + 2)
            .with_layout(LinearLayout::Col)
            .init(d),
        |l, d| l.forward(fill([3, WIDE], 1, d)).square().mean()
    );
    layer!(
        "embedding",
        |d| EmbeddingConfig::new(300, 64).init(d),
        |l, d| {
            let tokens: Tensor<2, Int> =
                Tensor::from_data(TensorData::new(vec![1i32, 5, 299, 5], [2, 2]), d);
            l.forward(tokens).square().mean()
        }
    );
    layer!(
        "conv1d",
        |d| Conv1dConfig::new(64, 64, 5).init(d),
        |l, d| l.forward(fill([2, 64, 9], 1, d)).square().mean()
    );
    layer!(
        "conv2d",
        |d| Conv2dConfig::new([32, 32], [5, 5]).init(d),
        |l, d| l.forward(fill([2, 32, 6, 6], 1, d)).square().mean()
    );
    layer!(
        "conv3d",
        |d| Conv3dConfig::new([32, 32], [3, 3, 3]).init(d),
        |l, d| l.forward(fill([1, 32, 4, 4, 4], 1, d)).square().mean()
    );
    layer!(
        "conv_transpose1d",
        |d| ConvTranspose1dConfig::new([64, 64], 5).init(d),
        |l, d| l.forward(fill([2, 64, 4], 1, d)).square().mean()
    );
    layer!(
        "conv_transpose2d",
        |d| ConvTranspose2dConfig::new([32, 32], [5, 5]).init(d),
        |l, d| l.forward(fill([1, 32, 3, 3], 1, d)).square().mean()
    );
    layer!(
        "conv_transpose3d",
        |d| ConvTranspose3dConfig::new([32, 32], [3, 3, 3]).init(d),
        |l, d| l.forward(fill([1, 32, 2, 2, 2], 1, d)).square().mean()
    );
    layer!(
        "deform_conv2d",
        |d| DeformConv2dConfig::new([32, 32], [5, 5]).init(d),
        |l, d| {
            let offset = fill([1, 50, 2, 2], 2, d);
            l.forward(fill([1, 32, 6, 6], 1, d), offset, None)
                .square()
                .mean()
        }
    );
    layer!(
        "layer_norm",
        |d| LayerNormConfig::new(LONG).init(d),
        |l, d| l.forward(fill([2, LONG], 1, d)).square().mean()
    );
    layer!(
        "group_norm",
        |d| GroupNormConfig::new(2, LONG).init(d),
        |l, d| l.forward(fill([1, LONG, 2], 1, d)).square().mean()
    );
    layer!(
        "instance_norm",
        |d| InstanceNormConfig::new(LONG).init(d),
        |l, d| l.forward(fill([1, LONG, 3], 1, d)).powi_scalar(3).mean()
    );
    layer!("rms_norm", |d| RmsNormConfig::new(LONG).init(d), |l, d| l
        .forward(fill([2, LONG], 1, d))
        .square()
        .mean());
    layer!("batch_norm", |d| BatchNormConfig::new(5).init(d), |l, d| l
        .forward(fill([4, 5, 3], 1, d))
        .powi_scalar(3)
        .mean());
    layer!(
        "prelu",
        |d| PReluConfig::new().with_num_parameters(LONG).init(d),
        |l, d| l.forward(fill([2, LONG], 1, d)).square().mean()
    );
    layer!(
        "swiglu",
        |d| SwiGluConfig::new(WIDE, WIDE).init(d),
        |l, d| l.forward(fill([2, WIDE], 1, d)).square().mean()
    );
    layer!("rnn", |d| RnnConfig::new(3, WIDE, true).init(d), |l, d| l
        .forward(fill([2, 4, 3], 1, d), None)
        .0
        .square()
        .mean());
    layer!("gru", |d| GruConfig::new(3, WIDE, true).init(d), |l, d| l
        .forward(fill([2, 4, 3], 1, d), None)
        .square()
        .mean());
    layer!(
        "lstm",
        |d| LstmConfig::new(3, WIDE, true).init(d),
        |l, d| l.forward(fill([2, 4, 3], 1, d), None).0.square().mean()
    );
    layer!(
        "bi_lstm",
        |d| BiLstmConfig::new(3, WIDE, true).init(d),
        |l, d| l.forward(fill([2, 4, 3], 1, d), None).0.square().mean()
    );
    layer!(
        "multi_head_attention",
        |d| MultiHeadAttentionConfig::new(WIDE, 4)
            .with_dropout(0.0)
            .init(d),
        |l, d| {
            let input = MhaInput::self_attn(fill([1, 8, WIDE], 1, d));
            let mask = generate_autoregressive_mask(1, 8, d);
            l.forward(input.mask_attn(mask)).context.square().mean()
        }
    );
    layer!(
        "cross_attention",
        |d| CrossAttentionConfig::new(WIDE, WIDE, 4, 4, 36)
            .with_dropout(0.0)
            .init(d),
        |l, d| l
            .forward(fill([1, 3, WIDE], 1, d), fill([1, 5, WIDE], 2, d), None)
            .square()
            .mean()
    );
    layer!(
        "position_wise_feed_forward",
        |d| PositionWiseFeedForwardConfig::new(WIDE, WIDE)
            .with_dropout(0.0)
            .init(d),
        |l, d| l.forward(fill([1, 8, WIDE], 1, d)).square().mean()
    );
    layer!(
        "transformer_encoder",
        |d| TransformerEncoderConfig::new(WIDE, WIDE, 4, 1)
            .with_dropout(0.0)
            .init(d),
        |l, d| {
            let input = TransformerEncoderInput::new(fill([1, 8, WIDE], 1, d));
            l.forward(input).powi_scalar(3).mean()
        }
    );
    layer!(
        "transformer_decoder",
        |d| TransformerDecoderConfig::new(WIDE, WIDE, 4, 1)
            .with_dropout(0.0)
            .init(d),
        |l, d| {
            let (target, memory) = (fill([1, 8, WIDE], 1, d), fill([1, 8, WIDE], 2, d));
            let input = TransformerDecoderInput::new(target, memory);
            l.forward(input).powi_scalar(3).mean()
        }
    );
    keepers
}

/// An embedding keeps its weights for the backward pass, which looks at nothing but their shape. A linear
/// layer whose input's batches are not worth merging keeps a view of its weights.
#[test]
fn what_layers_keep_on_the_default_device() {
    let expected = [
        "embedding",
        "multi_head_attention",
        "cross_attention",
        "position_wise_feed_forward",
        "transformer_encoder",
        "transformer_decoder",
    ];
    assert_eq!(keepers(&Device::flex().autodiff()), expected);
}

#[test]
fn what_layers_keep_on_a_device_that_recomputes() {
    let device = Device::flex().autodiff().gradient_checkpointing();
    assert_eq!(keepers(&device), ["embedding"]);
}
