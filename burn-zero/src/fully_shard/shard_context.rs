//! [`ShardContext`]: groups, layout and marks of one wrapped model, on one rank.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use burn::module::ParamId;
use burn::tensor::{DType, Device};
use burn_dist::backend::{self, BackwardMark, Ladder, MarkTensor, ParameterSource, RungTensor};

use super::gather_order::GatherOrder;
use super::gradient_sums::GradientSums;
use super::shard_groups::ShardGroups;
use super::unit_policy::ShardUnit;
use crate::ShardLayout;

/// A trained parameter of the wrapped model.
#[derive(Debug, Clone)]
pub(crate) struct ManagedParameter {
    pub(crate) name: String,
    pub(crate) id: ParamId,
    pub(crate) shape: Vec<usize>,
    /// As the model sees it.
    pub(crate) param: DType,
    /// As it is kept.
    pub(crate) master: DType,
    /// Its unit; those of whole parameters come after the layout's.
    pub(crate) unit: usize,
    /// Its elements in the unit.
    pub(crate) place: Range<usize>,
    pub(crate) recurrent: bool,
}

impl ManagedParameter {
    pub(crate) fn num_elements(&self) -> usize {
        self.place.len()
    }
}

/// What all parameters of a wrapped model share.
#[derive(Debug)]
pub(crate) struct ShardContext {
    pub(crate) groups: ShardGroups,
    pub(crate) device: Device,
    pub(crate) parameters: Vec<ManagedParameter>,
    /// Split ones first, as in the layout; then those of whole parameters.
    pub(crate) units: Vec<ShardUnit>,
    pub(crate) layout: ShardLayout,
    pub(crate) reshard_after_forward: bool,
    pub(crate) prefetch: bool,
    pub(crate) sums: Mutex<GradientSums>,
    order: [Mutex<GatherOrder>; 2],
    marks: Marks,
    /// Backward passes that have ended.
    passes: AtomicU64,
    /// Gathers started, by unit.
    gathers: Vec<AtomicU64>,
}

#[derive(Debug)]
struct Marks {
    anchor: MarkTensor,
    ground: RungTensor,
    rungs: Vec<RungTensor>,
}

/// Steps of the autodiff graph between two units for each of their parameters: more than the operations
/// that a model runs between reading one parameter and the next.
const STRIDE: usize = 64;

impl Marks {
    fn new(device: &Device, units: &[ShardUnit]) -> Self {
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
}

/// Settings that a context keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContextOptions {
    pub(crate) reshard_after_forward: bool,
    pub(crate) prefetch: bool,
    pub(crate) average_micro_steps: bool,
}

impl ShardContext {
    pub(crate) fn new(
        groups: ShardGroups,
        device: Device,
        parameters: Vec<ManagedParameter>,
        units: Vec<ShardUnit>,
        layout: ShardLayout,
        sum_dtypes: Vec<DType>,
        options: ContextOptions,
    ) -> Self {
        let sums = GradientSums::new(&parameters, sum_dtypes, options.average_micro_steps);
        Self {
            marks: Marks::new(&device, &units),
            gathers: units.iter().map(|_| AtomicU64::new(0)).collect(),
            groups,
            device,
            parameters,
            units,
            layout,
            reshard_after_forward: options.reshard_after_forward,
            prefetch: options.prefetch,
            sums: Mutex::new(sums),
            order: Default::default(),
            passes: AtomicU64::new(0),
        }
    }

    /// Whether each rank keeps all of this unit.
    pub(crate) fn is_whole(&self, unit: usize) -> bool {
        unit >= self.layout.num_units()
    }

    /// The mark of a unit, for one use of one of its parameters.
    pub(crate) fn mark(&self, unit: usize, source: &Arc<dyn ParameterSource>) -> MarkTensor {
        let Marks {
            anchor,
            ground,
            rungs,
        } = &self.marks;
        let pass = backend::mark(anchor, ground, BackwardMark::Pass(source.clone()));
        let unit_mark = BackwardMark::Unit(source.clone(), unit);
        backend::mark(&pass, &rungs[unit], unit_mark)
    }

    pub(crate) fn sums(&self) -> MutexGuard<'_, GradientSums> {
        self.sums
            .lock()
            .expect("invariant: no panic under this lock")
    }

    /// What follows what, in training and in evaluation.
    pub(crate) fn order(&self, training: bool) -> MutexGuard<'_, GatherOrder> {
        self.order[usize::from(training)]
            .lock()
            .expect("invariant: no panic under this lock")
    }

    pub(crate) fn passes(&self) -> u64 {
        self.passes.load(Ordering::Relaxed)
    }

    pub(crate) fn count_pass(&self) {
        self.passes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_gather(&self, unit: usize) {
        self.gathers[unit].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn gathers(&self) -> Vec<u64> {
        let gathers = self.gathers.iter();
        gathers.map(|count| count.load(Ordering::Relaxed)).collect()
    }
}
