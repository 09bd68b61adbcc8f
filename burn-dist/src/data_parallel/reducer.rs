//! [`Reducer`]: takes gradients from the hooks, fills buckets, launches them in index order.

use std::sync::{Mutex, MutexGuard};

use burn::tensor::Gradients;

use super::gradient_bucket::GradientBucket;
use super::{BucketLayout, BucketPlan, GradientEvent, ParameterSpec};
use crate::backend::{DeviceArray, FlatArray, FlatMemory, GradientSink};
use crate::communicator::ReduceOp;
use crate::error::{DistError, Result};
use crate::group::ProcessGroup;

/// A bucket's reduced gradients.
#[derive(Debug)]
pub(super) struct Reduced {
    pub(super) buffer: FlatArray,
    /// Which slots this rank filled.
    pub(super) touched: Vec<bool>,
    /// What the sum is still to be divided by.
    pub(super) divisor: usize,
}

/// What a sum is divided by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Averaging {
    pub(super) ranks: bool,
    pub(super) micro_steps: bool,
}

/// Takes a leaf's gradient out of a backward pass's results, if there is one.
pub(super) type ReadLeaf = Box<dyn Fn(&mut Gradients) -> Option<DeviceArray> + Send>;

struct State {
    /// `false` inside `no_sync`: gradients are kept here and nothing is launched.
    launching: bool,
    /// Uses recorded in forward passes and gradients that came, since the last synchronisation.
    used: Vec<u64>,
    fired: Vec<u64>,
    /// Gradients of a pass that lacks some of a parameter's uses.
    pending: Vec<Vec<FlatArray>>,
    /// How to get the gradients that autodiff keeps at leaves, by parameter.
    leaves: Vec<Option<ReadLeaf>>,
    /// Parameters of each bucket that are not ready.
    waiting: Vec<usize>,
    ready: Vec<bool>,
    buckets: Vec<GradientBucket>,
    next: usize,
    micro_steps: usize,
    failure: Option<DistError>,
    events: Vec<GradientEvent>,
    last_events: Vec<GradientEvent>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("next", &self.next)
            .field("micro_steps", &self.micro_steps)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(super) struct Reducer {
    group: ProcessGroup,
    plan: BucketPlan,
    names: Vec<String>,
    averaging: Averaging,
    /// Reduced buckets are split over the ranks, and whole ones are not to pile up.
    shard: bool,
    state: Mutex<State>,
}

impl Reducer {
    pub(super) fn new(
        group: ProcessGroup,
        plan: BucketPlan,
        specs: &[ParameterSpec],
        averaging: Averaging,
        shard: bool,
    ) -> Self {
        let shared_by = shard.then(|| group.size());
        let names: Vec<String> = specs.iter().map(|spec| spec.name.clone()).collect();
        let bucket = |layout: &BucketLayout| {
            let device = &specs[layout.slots[0].parameter].device;
            GradientBucket::new(layout.clone(), shared_by, FlatMemory::of(&group, device))
        };
        let state = State {
            launching: true,
            used: vec![0; names.len()],
            fired: vec![0; names.len()],
            pending: names.iter().map(|_| Vec::new()).collect(),
            leaves: (0..names.len()).map(|_| None).collect(),
            waiting: plan.buckets().iter().map(|b| b.slots.len()).collect(),
            ready: vec![false; names.len()],
            buckets: plan.buckets().iter().map(bucket).collect(),
            next: 0,
            micro_steps: 0,
            failure: None,
            events: Vec::new(),
            last_events: Vec::new(),
        };
        Self {
            group,
            plan,
            names,
            averaging,
            shard,
            state: Mutex::new(state),
        }
    }

    pub(super) fn plan(&self) -> &BucketPlan {
        &self.plan
    }

    /// Switches launching and returns what it was.
    pub(super) fn set_launching(&self, launching: bool) -> bool {
        std::mem::replace(&mut self.lock().launching, launching)
    }

    /// Notes that a forward pass reads a parameter whose gradient will lie at its leaf.
    pub(super) fn read_leaf(&self, parameter: usize, read: ReadLeaf) {
        let mut state = self.lock();
        state.leaves[parameter] = Some(read);
    }

    /// Takes in what a backward pass has left at leaves.
    pub(super) fn take_leaves(&self, mut gradients: Gradients) {
        let mut state = self.lock();
        for parameter in 0..self.names.len() {
            let Some(read) = &state.leaves[parameter] else {
                continue;
            };
            let Some(gradient) = read(&mut gradients) else {
                continue;
            };
            state.used[parameter] += 1;
            if let Err(failure) = self.take(&mut state, parameter, gradient) {
                self.give_up(&mut state, failure);
            }
        }
    }

    /// Ends a backward pass whose gradients stay here.
    pub(super) fn end_micro_step(&self) {
        let mut state = self.lock();
        self.settle_all(&mut state);
        state.micro_steps += 1;
    }

    /// Counts micro-steps whose gradients come with the next one's.
    pub(super) fn expect_micro_steps(&self, count: usize) {
        self.lock().micro_steps += count;
    }

    /// Micro-steps whose gradients wait here for the next reduction.
    pub(super) fn pending_micro_steps(&self) -> usize {
        self.lock().micro_steps
    }

    pub(super) fn last_events(&self) -> Vec<GradientEvent> {
        self.lock().last_events.clone()
    }

    /// Launches what is left, waits for all buckets in order, and starts a new step.
    pub(super) fn finish(&self) -> Result<Vec<Reduced>> {
        let mut state = self.lock();
        self.settle_all(&mut state);
        state.micro_steps += 1;
        let (op, divisor) = self.mean(state.micro_steps);
        let mut outcome = state.failure.take().map_or(Ok(()), Err);
        let mut reduced = Vec::with_capacity(state.buckets.len());
        if outcome.is_ok() {
            while outcome.is_ok() && state.next < state.buckets.len() {
                outcome = self.launch_next(&mut state, op);
            }
        }
        if outcome.is_ok() {
            for bucket in &mut state.buckets {
                match bucket.wait() {
                    Ok((buffer, touched)) => reduced.push(Reduced {
                        buffer,
                        touched,
                        divisor,
                    }),
                    Err(failure) => {
                        outcome = Err(failure);
                        break;
                    }
                }
            }
        }
        self.start_step(&mut state);
        outcome.map(|()| reduced)
    }

    fn start_step(&self, state: &mut State) {
        state.used.fill(0);
        state.fired.fill(0);
        state.ready.fill(false);
        state.pending.iter_mut().for_each(Vec::clear);
        state.leaves.iter_mut().for_each(|leaf| *leaf = None);
        state.next = 0;
        state.micro_steps = 0;
        state.last_events = std::mem::take(&mut state.events);
        for (bucket, waiting) in state.buckets.iter_mut().zip(&mut state.waiting) {
            bucket.reset();
            *waiting = bucket.layout().slots.len();
        }
    }

    /// The reduction, and what the result is still to be divided by: the mean divides once.
    fn mean(&self, micro_steps: usize) -> (ReduceOp, usize) {
        let ranks = if self.averaging.ranks {
            self.group.size()
        } else {
            1
        };
        match self.averaging.micro_steps && micro_steps > 1 {
            true => (ReduceOp::Sum, ranks * micro_steps),
            false if self.averaging.ranks => (ReduceOp::Mean, 1),
            false => (ReduceOp::Sum, 1),
        }
    }

    /// When gradients are split, one whole bucket travels while the next fills.
    fn launch_next(&self, state: &mut State, op: ReduceOp) -> Result<()> {
        let bucket = state.next;
        if self.shard && bucket > 0 {
            state.buckets[bucket - 1].await_sum()?;
        }
        state.buckets[bucket].launch(op, &self.group);
        state.events.push(GradientEvent::Launched { bucket });
        state.next += 1;
        Ok(())
    }

    /// Moves a parameter's gradients to its bucket, in the order in which the backward pass came to its
    /// uses. Without hooks it adds them up in that order too, but for deeper uses before others: the
    /// bits are the same for chains, recurrent layers, and all parameters of up to two uses.
    fn settle(&self, state: &mut State, parameter: usize) {
        let uses = std::mem::take(&mut state.pending[parameter]);
        if let Some((bucket, slot)) = self.plan.place(parameter)
            && !uses.is_empty()
            && !state.buckets[bucket].is_launched()
        {
            state.buckets[bucket].add_uses(slot, uses);
        }
    }

    /// What is left when a pass has ended: uses that it did not reach will not come.
    fn settle_all(&self, state: &mut State) {
        for parameter in 0..self.names.len() {
            self.settle(state, parameter);
        }
    }

    fn take(&self, state: &mut State, parameter: usize, gradient: DeviceArray) -> Result<()> {
        let (bucket, _) = self
            .plan
            .place(parameter)
            .expect("invariant: hooks sit on trained parameters");
        state.fired[parameter] += 1;
        if state.buckets[bucket].is_launched() {
            return Err(DistError::config(
                format!(
                    "rank {}: the gradient of {} came after its bucket had been sent",
                    self.group.rank(),
                    self.names[parameter]
                ),
                "call sync once after each backward pass, and run earlier micro-steps inside no_sync",
            ));
        }
        let gradient = state.buckets[bucket].take(gradient)?;
        state.pending[parameter].push(gradient);
        state.events.push(GradientEvent::Ready { parameter });
        if state.fired[parameter] < state.used[parameter] {
            return Ok(());
        }
        self.settle(state, parameter);
        if !state.launching || state.ready[parameter] {
            return Ok(());
        }
        state.ready[parameter] = true;
        state.waiting[bucket] -= 1;
        let (op, _) = self.mean(state.micro_steps + 1);
        while state.next < state.buckets.len() && state.waiting[state.next] == 0 {
            self.launch_next(state, op)?;
        }
        Ok(())
    }

    /// The backward pass cannot return an error; peers must not wait for this rank.
    fn give_up(&self, state: &mut State, failure: DistError) {
        if state.failure.is_none() {
            self.group.abort(failure.clone());
            state.failure = Some(failure);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("invariant: no panic under this lock")
    }
}

impl GradientSink for Reducer {
    fn used(&self, parameter: usize) {
        self.lock().used[parameter] += 1;
    }

    fn ready(&self, parameter: usize, gradient: DeviceArray) {
        let mut state = self.lock();
        if let Err(failure) = self.take(&mut state, parameter, gradient) {
            self.give_up(&mut state, failure);
        }
    }
}
