//! [`Conjugate`]: a collective forward and the collective that its gradient takes backward.

use std::panic::Location;

use super::Step;
use crate::group::ProcessGroup;

/// A pair of steps: what happens to the tensor in the forward pass and to its gradient in the
/// backward pass.
#[derive(Debug, Clone)]
pub struct Conjugate {
    /// On the tensor, in the forward pass.
    pub forward: Step,
    /// On the gradient, in the backward pass.
    pub backward: Step,
    /// The ranks that take part; all of them run both passes.
    pub group: ProcessGroup,
    /// `true`: the output is not kept for the backward pass; the forward step runs again when a
    /// consumer asks for it (FSDP's `reshard_after_forward`). `false`: the output is kept.
    pub recompute: bool,
    /// Where in the program the pair is made, for the flight recorder.
    pub site: &'static Location<'static>,
}

impl Conjugate {
    /// A pair whose output is kept for the backward pass.
    #[track_caller]
    pub fn new(forward: Step, backward: Step, group: &ProcessGroup) -> Self {
        Self {
            forward,
            backward,
            group: group.clone(),
            recompute: false,
            site: Location::caller(),
        }
    }

    /// The same pair, run again in the backward pass instead of kept.
    pub fn recomputed(mut self) -> Self {
        self.recompute = true;
        self
    }

    /// The pair that acts on the gradient: both steps exchanged.
    pub fn reversed(&self) -> Self {
        Self {
            forward: self.backward.clone(),
            backward: self.forward.clone(),
            group: self.group.clone(),
            recompute: false,
            site: self.site,
        }
    }
}
