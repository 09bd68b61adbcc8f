//! [`clip_grad_norm`]: one norm over all gradients.

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn_dist::data_parallel::{clip_factor, scale_gradients, squares_of_gradients};
use burn_dist::placement::Declarations;
use burn_dist::{DistError, Result};

use crate::{ModelParallel, NormSum};

/// Scales gradients down so that their norm, over all parameters of the model together, is at most
/// `max_norm`; returns them and the norm that they had. Local: for gradients that are whole on this rank,
/// as after [`DataParallel::sync`](burn_dist::data_parallel::DataParallel::sync).
///
/// Gradients of a norm that is not finite are returned as they are.
///
/// ([Pascanu et al., arXiv 1211.5063](https://arxiv.org/abs/1211.5063), algorithm 1; with 1e-6 added to
/// the norm that is divided by, as in PyTorch.)
///
/// # Errors
/// [`DistError::Config`] if `max_norm` is not a positive number, or if a layer is split over ranks: see
/// [`clip_grad_norm_over`].
pub fn clip_grad_norm<M: Module>(
    gradients: GradientsParams,
    model: &M,
    max_norm: f64,
) -> Result<(GradientsParams, f64)> {
    clip_grad_norm_over(gradients, model, max_norm, &ModelParallel::new())
}

/// As [`clip_grad_norm`], for a model whose layers are split over ranks: one norm over all their parts, the
/// same on every rank. Collective: a small all_reduce over each group.
///
/// # Errors
/// [`DistError::Config`] if `max_norm` is not a positive number, or for a parameter that is split over
/// another group; else what a group met.
pub fn clip_grad_norm_over<M: Module>(
    mut gradients: GradientsParams,
    model: &M,
    max_norm: f64,
    model_parallel: &ModelParallel,
) -> Result<(GradientsParams, f64)> {
    clip_factor(0.0, max_norm)?;
    let norm = total(&gradients, model, model_parallel)?.norm();
    if let Some(factor) = clip_factor(norm, max_norm)? {
        scale_gradients(&mut gradients, model, factor);
    }
    Ok((gradients, norm))
}

/// Of all gradients, over all parts of the model.
pub(crate) fn total<M: Module>(
    gradients: &GradientsParams,
    model: &M,
    model_parallel: &ModelParallel,
) -> Result<NormSum> {
    struct Counted<'a> {
        path: Vec<String>,
        declarations: Declarations,
        model_parallel: &'a ModelParallel,
        counted: HashSet<ParamId>,
        failure: Option<DistError>,
    }
    impl Counted<'_> {
        fn add(&mut self, id: ParamId) -> Result<()> {
            let path = self.path.join(".");
            let placements = self.declarations.of(&path)?;
            self.model_parallel.check(&path, &placements)?;
            if self.model_parallel.counts(id, &placements) {
                self.counted.insert(id);
            }
            Ok(())
        }
    }
    impl ModuleVisitor for Counted<'_> {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.path.push(name.into());
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Err(failure) = self.add(param.id) {
                self.failure.get_or_insert(failure);
            }
        }
    }
    let mut counted = Counted {
        path: Vec::new(),
        declarations: Declarations::read(model),
        model_parallel,
        counted: HashSet::new(),
        failure: None,
    };
    model.visit(&mut counted);
    if let Some(failure) = counted.failure {
        return Err(failure);
    }
    let sum = sum_of_squares(gradients, model, |id| counted.counted.contains(&id));
    model_parallel.sum(sum)
}

/// Of the gradients of some parameters, each once.
pub(crate) fn sum_of_squares<M: Module>(
    gradients: &GradientsParams,
    model: &M,
    counts: impl Fn(ParamId) -> bool,
) -> NormSum {
    squares_of_gradients(gradients, model, counts).into()
}
