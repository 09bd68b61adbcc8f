//! A layer whose weight's gradient is computed later has the bits of Burn's.

use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Distribution, Tensor};
use burn_dist::backend::DeferredProducts;
use burn_pipeline::DeferredLinear;

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
    let bits = |tensor: Tensor<D>| tensor.into_data().as_bytes().to_vec();
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
        let [right, got] = [&of_dense, &of_deferred].map(|gradients| {
            let gradient = gradients.get::<1>(bias.id).expect("tracked");
            gradient.into_data().as_bytes().to_vec()
        });
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
