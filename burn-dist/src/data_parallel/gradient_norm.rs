//! The norm of gradients, and a factor for all of them.

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use crate::backend::{KernelChoice, square_sum};
use crate::error::{DistError, Result};
use crate::kernels::SquareSum;

/// The exact sum of squares of the gradients of those parameters of a model that `counts` says, each once.
/// Local.
pub fn squares_of_gradients<M: Module>(
    gradients: &GradientsParams,
    model: &M,
    counts: impl Fn(ParamId) -> bool,
) -> SquareSum {
    struct Squares<'a, F> {
        gradients: &'a GradientsParams,
        counts: F,
        seen: HashSet<ParamId>,
        counted: Vec<Tensor<1>>,
    }
    impl<F: Fn(ParamId) -> bool> ModuleVisitor for Squares<'_, F> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if !(self.counts)(param.id) || !self.seen.insert(param.id) {
                return;
            }
            if let Some(gradient) = self.gradients.get::<D>(param.id) {
                self.counted.push(gradient.reshape([-1]));
            }
        }
    }
    let mut squares = Squares {
        gradients,
        counts,
        seen: HashSet::new(),
        counted: Vec::new(),
    };
    model.visit(&mut squares);
    square_sum(squares.counted, KernelChoice::Fused)
}

/// What gradients of this norm are multiplied by to have at most `max_norm`, if anything: nothing where the norm
/// is not finite.
///
/// ([Pascanu et al., arXiv 1211.5063](https://arxiv.org/abs/1211.5063), algorithm 1; with 1e-6 added to
/// the norm that is divided by, as in PyTorch.)
///
/// # Errors
/// [`DistError::Config`] if `max_norm` is not a positive number.
pub fn clip_factor(norm: f64, max_norm: f64) -> Result<Option<f64>> {
    if max_norm.is_nan() || max_norm <= 0.0 {
        return Err(DistError::config(
            format!("gradients are to be clipped to a norm of {max_norm}"),
            "give a positive one, 1 for example",
        ));
    }
    let factor = max_norm / (norm + 1e-6);
    Ok((norm.is_finite() && factor < 1.0).then_some(factor))
}

/// Multiplies all gradients of a model's parameters. Local.
pub fn scale_gradients<M: Module>(gradients: &mut GradientsParams, model: &M, factor: f64) {
    struct Scale<'a> {
        gradients: &'a mut GradientsParams,
        factor: f64,
        seen: HashSet<ParamId>,
    }
    impl ModuleVisitor for Scale<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if !self.seen.insert(param.id) {
                return;
            }
            if let Some(gradient) = self.gradients.remove::<D>(param.id) {
                let scaled = gradient.mul_scalar(self.factor);
                self.gradients.register(param.id, scaled);
            }
        }
    }
    model.visit(&mut Scale {
        gradients,
        factor,
        seen: HashSet::new(),
    });
}
