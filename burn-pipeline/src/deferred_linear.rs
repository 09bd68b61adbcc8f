//! [`DeferredLinear`]: Burn's linear layer for schedules that split the backward pass.

use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::Tensor;
use burn::tensor::module::linear;
use burn_dist::backend::{DeferredProduct, DeferredProducts, deferred_product, joins_rows};

/// Burn's `Linear` whose backward pass gives its input's gradient, and leaves the product that gives its
/// weight's to be computed when the schedule says so: by the same operations in the same order, so that the
/// bits are those of `Linear`. The bias, a sum, is not deferred. Nothing is sent.
#[derive(Module, Debug)]
pub struct DeferredLinear {
    /// `[d_input, d_output]`.
    pub weight: Param<Tensor<2>>,
    /// `[d_output]`.
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    products: DeferredProducts,
}

impl DeferredLinear {
    /// Takes the place of a dense layer; products go to `products`, which the stage gives to the runtime.
    pub fn from_dense(dense: Linear, products: &DeferredProducts) -> Self {
        Self {
            weight: dense.weight,
            bias: dense.bias,
            products: products.clone(),
        }
    }

    /// The dense layer.
    pub fn to_dense(&self) -> Linear {
        Linear {
            weight: self.weight.clone(),
            bias: self.bias.clone(),
        }
    }

    /// `[.., d_input] -> [.., d_output]`.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let (weight, bias) = (self.weight.val(), self.bias.as_ref().map(Param::val));
        if !input.is_autodiff() || !weight.is_require_grad() || D < 2 {
            return linear(input, weight, bias);
        }
        let deferred = DeferredProduct {
            products: self.products.clone(),
            layer: self.weight.id.val(),
        };
        let mut shape = input.dims();
        if !joins_rows(&input.shape(), &weight.shape()) {
            return with_bias(deferred_product(input, weight, deferred), bias);
        }
        // As Burn does, so that the bias's gradient is summed in the same order.
        let rows: usize = shape[..D - 1].iter().product();
        let input = input.reshape([rows, shape[D - 1]]);
        shape[D - 1] = weight.dims()[1];
        with_bias(deferred_product(input, weight, deferred), bias).reshape(shape)
    }
}

fn with_bias<const D: usize>(product: Tensor<D>, bias: Option<Tensor<1>>) -> Tensor<D> {
    match bias {
        Some(bias) => product + bias.unsqueeze(),
        None => product,
    }
}
