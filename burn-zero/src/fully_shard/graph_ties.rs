//! [`GraphTies`]: what ties a model's parameters to autodiff graphs.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use burn::module::Param;
use burn::tensor::{Device, Tensor};
use burn_dist::backend::{self, BackwardMark, Ladder, MarkTensor, ParameterSource, RungTensor};

use super::unit_policy::ShardUnit;

/// Tracked tensors of one version of a model.
///
/// The model holds them, and nothing that a graph holds: a graph's steps hold the version, and a version
/// that held nodes would keep every graph that is never run backward.
#[derive(Debug)]
pub(crate) struct GraphTies {
    marks: Arc<Marks>,
    /// By parameter, as the first of its places has it.
    pieces: Mutex<HashMap<usize, Param<Tensor<1>>>>,
    /// Parameters of recurrent layers, which are read at every time step: autodiff is to add their
    /// gradients up as it would at a leaf, so that all uses are of one node.
    shared: Mutex<HashMap<usize, Box<dyn Any + Send>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("invariant: no panic under this lock")
}

impl GraphTies {
    pub(crate) fn new(marks: Arc<Marks>) -> Self {
        Self {
            marks,
            pieces: Mutex::default(),
            shared: Mutex::default(),
        }
    }

    pub(crate) fn marks(&self) -> &Arc<Marks> {
        &self.marks
    }

    pub(crate) fn piece(&self, parameter: usize) -> Option<Param<Tensor<1>>> {
        lock(&self.pieces).get(&parameter).cloned()
    }

    pub(crate) fn put(&self, parameter: usize, piece: Param<Tensor<1>>) {
        lock(&self.pieces).insert(parameter, piece);
    }

    pub(crate) fn forget(&self, parameter: usize) {
        lock(&self.pieces).remove(&parameter);
    }

    /// The tensor that all uses of a recurrent layer's parameter share.
    pub(crate) fn shared_use<const D: usize>(&self, parameter: usize) -> Option<Tensor<D>> {
        let shared = lock(&self.shared);
        let tensor = shared.get(&parameter)?;
        tensor.downcast_ref::<Tensor<D>>().cloned()
    }

    pub(crate) fn share_use<const D: usize>(&self, parameter: usize, tensor: Tensor<D>) {
        lock(&self.shared).insert(parameter, Box::new(tensor));
    }

    pub(crate) fn end_shared_uses(&self) {
        lock(&self.shared).clear();
    }
}

/// Where in a backward pass units and the pass itself end.
#[derive(Debug)]
pub(crate) struct Marks {
    anchor: MarkTensor,
    ground: RungTensor,
    rungs: Vec<RungTensor>,
}

/// Steps of the autodiff graph between two units for each of their parameters: more than the operations
/// that a model runs between reading one parameter and the next.
const STRIDE: usize = 64;

impl Marks {
    pub(crate) fn new(device: &Device, units: &[ShardUnit]) -> Self {
        let ground = Ladder::new(device, 0).next_rung();
        let mut ladder = Ladder::new(device, STRIDE);
        let rungs = units.iter().map(|unit| {
            let rung = ladder.next_rung();
            for _ in 1..unit.parameters.len() {
                let _ = ladder.next_rung();
            }
            rung
        });
        Self {
            rungs: rungs.collect(),
            anchor: MarkTensor::anchor(device),
            ground,
        }
    }

    /// The mark of a unit, for one use of one of its parameters.
    pub(crate) fn of_unit(&self, unit: usize, source: &Arc<dyn ParameterSource>) -> MarkTensor {
        let pass = BackwardMark::Pass(source.clone());
        let pass = backend::mark(&self.anchor, &self.ground, pass);
        let unit_mark = BackwardMark::Unit(source.clone(), unit);
        backend::mark(&pass, &self.rungs[unit], unit_mark)
    }
}
