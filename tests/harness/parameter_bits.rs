//! [`parameter_bits`]: what two models are compared by.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

/// The bits of all trained parameters, in their order.
pub fn parameter_bits<M: Module>(model: &M) -> Vec<Vec<u8>> {
    struct Bits(Vec<Vec<u8>>);
    impl ModuleVisitor for Bits {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let base = param.base();
            if base.is_require_grad() {
                self.0.push(base.inner().into_data().as_bytes().to_vec());
            }
        }
    }
    let mut bits = Bits(Vec::new());
    model.visit(&mut bits);
    bits.0
}
