//! [`Kept`]: what a stage keeps of a micro-batch between its passes.

use burn::module::ParamId;
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, TensorData};
use burn_dist::backend::DeferredProducts;

use crate::Activation;

/// A product that was left for later: the weight's identifier, and what computes its gradient.
type Product = (u64, Box<dyn FnOnce() -> TensorData + Send>);

pub(crate) enum Kept {
    /// A graph: its leaves and what came out.
    Graph {
        input: Vec<Activation>,
        output: Vec<Activation>,
    },
    /// The inputs of some blocks, to compute them again: the first block of each and what it takes.
    Inputs(Vec<(usize, Vec<Activation>)>),
    /// Gradients, and products for those that are missing.
    Gradients(GradientsParams, Vec<Product>),
}

impl Kept {
    /// Computes what was left for later.
    pub(crate) fn into_gradients(self, device: &Device) -> GradientsParams {
        let Self::Gradients(mut gradients, products) = self else {
            unreachable!("invariant: the backward pass has run")
        };
        let device = device.clone().inner();
        for (weight, product) in products {
            let id = ParamId::from(weight);
            let data = product();
            let dtype = data.dtype();
            let gradient = Tensor::<2>::from_data(data, (&device, dtype));
            let gradient = match gradients.remove::<2>(id) {
                Some(other) => other + gradient,
                None => gradient,
            };
            gradients.register(id, gradient);
        }
        gradients
    }
}

/// What a backward pass left.
pub(crate) fn left_by(products: Option<&DeferredProducts>) -> Vec<Product> {
    products.map_or_else(Vec::new, DeferredProducts::take)
}
