//! [`ShardContext`]: groups and layout of one wrapped model, on one rank.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use burn::module::ParamId;
use burn::tensor::{DType, Device};

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
    sums: Mutex<GradientSums>,
    order: [Mutex<GatherOrder>; 2],
    /// Backward passes that have ended.
    passes: AtomicU64,
    /// Gathers started, by unit.
    gathers: Vec<AtomicU64>,
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
