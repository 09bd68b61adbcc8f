//! [`GradientBucket`]: the gradients of some parameters, collected, sent and given back.

use super::BucketLayout;
use crate::backend::{DeviceArray, FlatArray, FlatMemory, FlatWork};
use crate::communicator::{Operation, ReduceOp};
use crate::error::Result;
use crate::group::ProcessGroup;

/// A bucket goes `add`, ..., `add`, `launch`, `wait`, and is then empty again.
#[derive(Debug)]
pub(super) struct GradientBucket {
    layout: BucketLayout,
    /// Ranks that share the reduced bucket in equal parts; `None`: all get all of it.
    shared_by: Option<usize>,
    /// Where its memory comes from and, once the gradients are dropped, returns to.
    memory: FlatMemory,
    buffer: Option<FlatArray>,
    touched: Vec<bool>,
    work: Option<FlatWork>,
    /// The sum, if it was waited for before the end.
    sum: Option<FlatArray>,
}

impl GradientBucket {
    pub(super) fn new(layout: BucketLayout, shared_by: Option<usize>, memory: FlatMemory) -> Self {
        Self {
            touched: vec![false; layout.slots.len()],
            layout,
            shared_by,
            memory,
            buffer: None,
            work: None,
            sum: None,
        }
    }

    pub(super) fn layout(&self) -> &BucketLayout {
        &self.layout
    }

    pub(super) fn is_launched(&self) -> bool {
        self.work.is_some() || self.sum.is_some()
    }

    /// Waits for the sum, and keeps it: the memory of the whole bucket is free then.
    pub(super) fn await_sum(&mut self) -> Result<()> {
        if let Some(work) = self.work.take() {
            self.sum = Some(work.wait()?);
        }
        Ok(())
    }

    /// A gradient as the bucket takes it: in its memory.
    pub(super) fn take(&self, gradient: DeviceArray) -> Result<FlatArray> {
        self.memory.take(gradient)
    }

    /// Adds the gradients of one backward pass, one per use of the parameter, to its slot. They are
    /// summed among themselves first, as the autodiff graph would at a leaf.
    pub(super) fn add_uses(&mut self, slot: usize, uses: Vec<FlatArray>) {
        if self.layout.slots[slot].len == 0 || uses.iter().any(|u| u.dtype() != self.layout.dtype) {
            // 16-bit gradients: each goes into the wider sum.
            uses.into_iter()
                .for_each(|gradient| self.add(slot, gradient));
            return;
        }
        let sum = uses.into_iter().reduce(|mut sum, gradient| {
            sum.put(0, gradient, false);
            sum
        });
        if let Some(sum) = sum {
            self.add(slot, sum);
        }
    }

    /// Adds a gradient to its slot; the first one is stored as it is.
    fn add(&mut self, slot: usize, gradient: FlatArray) {
        let place = self.layout.slots[slot];
        assert_eq!(
            gradient.num_elements(),
            place.len,
            "invariant: a gradient has its parameter's size"
        );
        let first = !std::mem::replace(&mut self.touched[slot], true);
        // A bucket of one takes the gradient's own memory.
        if first
            && self.layout.slots.len() == 1
            && self.num_elements() == place.len
            && gradient.dtype() == self.layout.dtype
        {
            self.buffer = Some(gradient);
            return;
        }
        let (layout, memory, count) = (&self.layout, &self.memory, self.num_elements());
        let buffer = self
            .buffer
            .get_or_insert_with(|| memory.array(layout.dtype, count));
        buffer.put(place.offset, gradient, first);
    }

    fn num_elements(&self) -> usize {
        self.layout.padded_elements(self.shared_by.unwrap_or(1))
    }

    /// Starts the reduction. Slots that got nothing, and padding, hold -0.0, which changes no sum.
    pub(super) fn launch(&mut self, op: ReduceOp, group: &ProcessGroup) {
        let layout = &self.layout;
        // Written in full before it is sent: slots by `add`, the rest here.
        let buffer = self.buffer.take();
        let count = self.num_elements();
        let mut buffer = buffer.unwrap_or_else(|| self.memory.array(layout.dtype, count));
        for (slot, touched) in layout.slots.iter().zip(&self.touched) {
            if !touched {
                buffer.fill_neutral(slot.offset..slot.offset + slot.len);
            }
        }
        buffer.fill_neutral(layout.num_elements()..count);
        let operation = match self.shared_by {
            Some(_) => Operation::ReduceScatter(op),
            None => Operation::AllReduce(op),
        };
        self.work = Some(buffer.start(operation, group, None));
    }

    /// Waits for the sum and empties the bucket. Also tells which slots this rank filled.
    pub(super) fn wait(&mut self) -> Result<(FlatArray, Vec<bool>)> {
        let outcome = self.await_sum();
        let sum = self.sum.take();
        let touched = self.reset();
        outcome?;
        Ok((sum.expect("invariant: waits after launch"), touched))
    }

    /// Forgets everything.
    pub(super) fn reset(&mut self) -> Vec<bool> {
        self.buffer = None;
        self.work = None;
        self.sum = None;
        let empty = vec![false; self.layout.slots.len()];
        std::mem::replace(&mut self.touched, empty)
    }
}
