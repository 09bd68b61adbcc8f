//! The reparameterization that puts a hook on a parameter without touching the model's code.

use std::sync::Arc;

use burn::module::{Module, Param, Reparameterization, Reparameterizer};
use burn::tensor::{Device, Gradients, Tensor};

use super::ParameterTable;
use super::reducer::Reducer;
use crate::backend::{self, DeviceArray, GradientHook, Ladder, RungTensor};

/// How a parameter's gradient comes to the reducer.
#[derive(Debug, Clone)]
enum Way {
    /// From each use, as soon as the backward pass has come to it.
    Hook(Box<RungTensor>, GradientHook),
    /// From the leaf, after the backward pass: autodiff adds up many uses in an order of its own.
    Leaf(Arc<Reducer>, usize),
}

/// Shows the parameter as it is; its gradient goes to the reducer.
#[derive(Module, Debug)]
pub(super) struct Synchronized {
    #[module(skip)]
    way: Way,
}

impl Reparameterization for Synchronized {
    const NAME: &'static str = "data_parallel";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        // A validation model is not tracked, and the rung must not make it so.
        if !base.is_autodiff() {
            return base;
        }
        match &self.way {
            Way::Hook(rung, hook) => backend::hook(base, rung, hook.clone()),
            Way::Leaf(reducer, parameter) => {
                let leaf = base.clone();
                let read = move |gradients: &mut Gradients| {
                    leaf.grad_remove(gradients).map(DeviceArray::from)
                };
                reducer.read_leaf(*parameter, Box::new(read));
                base
            }
        }
    }
}

/// Distance between the rungs of two parameters, in steps of the autodiff graph: more than the
/// operations that a model runs between reading one parameter and the next.
const STRIDE: usize = 64;

pub(super) struct Attach<'a> {
    table: &'a ParameterTable,
    reducer: Arc<Reducer>,
    ladders: Vec<(Device, Ladder)>,
}

impl<'a> Attach<'a> {
    pub(super) fn new(table: &'a ParameterTable, reducer: Arc<Reducer>) -> Self {
        Self {
            table,
            reducer,
            ladders: Vec::new(),
        }
    }

    fn next_rung(&mut self, device: &Device) -> RungTensor {
        let known = self.ladders.iter().position(|(known, _)| known == device);
        let ladder = known.unwrap_or_else(|| {
            self.ladders
                .push((device.clone(), Ladder::new(device, STRIDE)));
            self.ladders.len() - 1
        });
        self.ladders[ladder].1.next_rung()
    }
}

impl Reparameterizer for Attach<'_> {
    type Reparam = Synchronized;

    fn reparameterize<const D: usize>(
        &mut self,
        _path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Synchronized>) {
        let base = param.base();
        let known = self.table.position(param.id);
        let Some(parameter) = known.filter(|_| base.is_require_grad()) else {
            return (param, None);
        };
        let reducer = self.reducer.clone();
        let way = match self.table.specs()[parameter].recurrent {
            true => Way::Leaf(reducer, parameter),
            false => {
                let rung = Box::new(self.next_rung(&base.device()));
                Way::Hook(rung, GradientHook::new(reducer, parameter))
            }
        };
        (param, Some(Synchronized { way }))
    }
}
