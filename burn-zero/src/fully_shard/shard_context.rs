//! [`ShardContext`]: groups, plan and counts of one wrapped model, on one rank.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use burn::tensor::Device;
use burn_dist::backend::FlatMemory;

use super::gather_order::GatherOrder;
use super::gradient_sums::GradientSums;
use super::shard_groups::ShardGroups;
use super::shard_plan::ShardPlan;
use crate::ModelParallel;

/// What all parameters of a wrapped model share.
#[derive(Debug)]
pub(crate) struct ShardContext {
    pub(crate) groups: ShardGroups,
    pub(crate) device: Device,
    pub(crate) plan: ShardPlan,
    pub(crate) model_parallel: ModelParallel,
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
    pub(crate) sum_ranks: bool,
}

impl ShardContext {
    pub(crate) fn new(
        groups: ShardGroups,
        device: Device,
        plan: ShardPlan,
        model_parallel: ModelParallel,
        options: ContextOptions,
    ) -> Self {
        let memory = FlatMemory::of(&groups.shard, &device);
        let sums = GradientSums::new(&plan, memory, options);
        Self {
            gathers: plan.units.iter().map(|_| AtomicU64::new(0)).collect(),
            groups,
            device,
            plan,
            model_parallel,
            reshard_after_forward: options.reshard_after_forward,
            prefetch: options.prefetch,
            sums: Mutex::new(sums),
            order: Default::default(),
            passes: AtomicU64::new(0),
        }
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
