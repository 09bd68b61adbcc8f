//! A layer whose weight's gradient is computed later has the bits of Burn's.

use burn::nn::attention::{MhaInput, MultiHeadAttentionConfig, generate_autoregressive_mask};
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Bool, Device, Distribution, Int, Tensor};
use burn_dist::backend::DeferredProducts;
use burn_dist::data_parallel::ParameterTable;
use burn_pipeline::{DeferredAttention, DeferredLinear};
use tests::parameter_bits;

fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u8> {
    tensor.into_data().as_bytes().to_vec()
}

fn compare<const D: usize>(shape: [usize; D], d_output: usize, bias: bool) {
    let device = Device::flex().autodiff();
    let d_input = shape[D - 1];
    let dense: Linear = LinearConfig::new(d_input, d_output)
        .with_bias(bias)
        .init(&device);
    // Drawn now.
    let _ = (
        dense.weight.val(),
        dense.bias.as_ref().map(|bias| bias.val()),
    );
    let products = DeferredProducts::default();
    let deferred = DeferredLinear::from_dense(dense.clone(), &products);
    let input = Tensor::<D>::random(shape, Distribution::Default, &device);
    let what = format!("{shape:?} to {d_output}");

    let x = input.clone().require_grad();
    let y = dense.forward(x.clone());
    let mut grads = y.clone().powi_scalar(2).sum().backward();
    let x_dense = x.grad_remove(&mut grads).expect("tracked");
    let of_dense = GradientsParams::from_grads(grads, &dense);

    let x = input.require_grad();
    let z = deferred.forward(x.clone());
    assert_eq!(bits(y), bits(z.clone()), "{what}: output");
    let mut grads = z.powi_scalar(2).sum().backward();
    let x_deferred = x.grad_remove(&mut grads).expect("tracked");
    assert_eq!(bits(x_dense), bits(x_deferred), "{what}: input");
    let of_deferred = GradientsParams::from_grads(grads, &deferred);
    let id = dense.weight.id;
    assert!(of_deferred.get::<2>(id).is_none(), "left for later");
    let left = products.take();
    assert_eq!(left.len(), 1);
    for (weight, product) in left {
        assert_eq!(weight, id.val());
        let right = of_dense.get::<2>(id).expect("tracked").into_data();
        assert_eq!(product().as_bytes(), right.as_bytes(), "{what}: weight");
    }
    if let Some(bias) = &dense.bias {
        let [right, got] = [&of_dense, &of_deferred]
            .map(|gradients| bits(gradients.get::<1>(bias.id).expect("tracked")));
        assert_eq!(got, right, "{what}: bias");
    }
}

#[test]
fn as_burns_layer_bit_for_bit() {
    for bias in [true, false] {
        // Both ways in which Burn multiplies inputs of several sequences, and plain rows.
        for (b, s) in [(1, 1), (1, 64), (2, 3), (8, 1), (8, 128), (64, 2), (3, 257)] {
            for (h, d) in [(1, 1), (5, 7), (64, 256), (256, 64)] {
                compare([b, s, h], d, bias);
            }
        }
        compare([7, 5], 3, bias);
        compare([2, 3, 4, 5], 6, bias);
    }
}

#[test]
fn attention_as_burns_bit_for_bit() {
    let device = Device::flex().autodiff();
    let (batch, seq, width) = (3, 17, 24);
    for quiet in [false, true] {
        let dense = MultiHeadAttentionConfig::new(width, 4)
            .with_dropout(0.0)
            .with_quiet_softmax(quiet)
            .init(&device);
        ParameterTable::of(&dense).expect("drawn now");
        let products = DeferredProducts::default();
        let deferred = DeferredAttention::from_dense(dense.clone(), &products);
        assert_eq!(
            parameter_bits(&deferred.to_dense()),
            parameter_bits(&dense),
            "and back"
        );
        let input = Tensor::<3>::random([batch, seq, width], Distribution::Default, &device);
        let attn = generate_autoregressive_mask(batch, seq, &device);
        let last = Tensor::<1, Int>::arange(0..seq as i64, &device).greater_elem(12);
        let pad: Tensor<2, Bool> = last.unsqueeze::<2>().repeat_dim(0, batch);
        for (pad, attn) in [
            (None, None),
            (Some(pad.clone()), None),
            (Some(pad), Some(attn)),
        ] {
            let mut mha = MhaInput::self_attn(input.clone());
            if let Some(pad) = &pad {
                mha = mha.mask_pad(pad.clone());
            }
            if let Some(attn) = &attn {
                mha = mha.mask_attn(attn.clone());
            }
            let right = dense.forward(mha).context;
            let got = deferred.forward(input.clone(), pad, attn);
            assert_eq!(bits(right.clone()), bits(got.clone()), "output");
            let loss = |y: Tensor<3>| y.powi_scalar(2).sum().backward();
            let right = GradientsParams::from_grads(loss(right), &dense);
            let got = GradientsParams::from_grads(loss(got), &deferred);
            let left = products.take();
            assert_eq!(left.len(), 4, "a product for each layer");
            for (weight, product) in left {
                let right = right.get::<2>(weight.into()).expect("tracked").into_data();
                assert_eq!(product().as_bytes(), right.as_bytes(), "weight");
            }
            for layer in [&dense.query, &dense.key, &dense.value, &dense.output] {
                let id = layer.bias.as_ref().expect("by default").id;
                let [right, got] = [&right, &got].map(|g| bits(g.get::<1>(id).expect("tracked")));
                assert_eq!(got, right, "bias");
            }
        }
    }
}
