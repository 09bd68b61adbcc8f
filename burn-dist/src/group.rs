//! [`ProcessGroup`]: ordered ranks, this rank's index among them, and how they talk.

use std::sync::Arc;

use burn::tensor::Element;

use crate::communicator::{Call, Communicator, HostBuffer, Operation, ReduceOp, Traffic, Work};
use crate::error::{DistError, Result};

/// An ordered set of ranks that make collective calls together. Cheap to clone.
///
/// A group is an argument wherever it is needed; there is no default group.
#[derive(Debug, Clone)]
pub struct ProcessGroup {
    communicator: Arc<dyn Communicator>,
}

impl ProcessGroup {
    /// A group over a communicator.
    pub fn new(communicator: Arc<dyn Communicator>) -> Self {
        Self { communicator }
    }

    /// The group's name, as it stands in errors.
    pub fn name(&self) -> &str {
        self.communicator.members().name()
    }

    /// This rank's position in the group.
    pub fn index(&self) -> usize {
        self.communicator.members().index()
    }

    /// Number of members.
    pub fn size(&self) -> usize {
        self.communicator.members().size()
    }

    /// This rank's global rank.
    pub fn rank(&self) -> usize {
        self.communicator.members().rank()
    }

    /// Global ranks in group order.
    pub fn ranks(&self) -> &[usize] {
        self.communicator.members().ranks()
    }

    /// The communicator underneath.
    pub fn communicator(&self) -> &Arc<dyn Communicator> {
        &self.communicator
    }

    /// Bytes that this rank moved in this group so far.
    pub fn traffic(&self) -> Traffic {
        self.communicator.traffic()
    }

    /// Makes a call and waits for its end.
    ///
    /// # Errors
    /// See [`Work::wait`].
    #[track_caller]
    pub fn run(&self, operation: Operation, input: HostBuffer) -> Result<HostBuffer> {
        self.communicator.run(Call::new(operation, input))
    }

    /// Starts a call; it progresses while this rank computes.
    #[track_caller]
    pub fn start(&self, operation: Operation, input: HostBuffer) -> Work {
        self.communicator.start(Call::new(operation, input))
    }

    /// As [`start`](Self::start), saying what the call is for: members that call for different things
    /// get an error that names both.
    #[track_caller]
    pub fn start_for(&self, label: String, operation: Operation, input: HostBuffer) -> Work {
        let call = Call::new(operation, input).labelled(label);
        self.communicator.start(call)
    }

    /// `Err` if the group failed earlier, also in a backward pass, where an error cannot be returned.
    ///
    /// # Errors
    /// The first failure.
    pub fn check(&self) -> Result<()> {
        match self.communicator.failure() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    /// Ends the group for all members with `cause`.
    pub fn abort(&self, cause: DistError) {
        self.communicator.abort(cause);
    }

    /// Waits until every member is here. Collective.
    ///
    /// # Errors
    /// See [`Work::wait`].
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        let nothing = HostBuffer::from_values(Vec::<u8>::new());
        self.run(Operation::Barrier, nothing).map(drop)
    }

    /// Reduces a few host values over the group. Collective; every rank gives as many values.
    ///
    /// # Errors
    /// See [`Work::wait`].
    #[track_caller]
    pub fn all_reduce_values<E>(&self, values: Vec<E>, op: ReduceOp) -> Result<Vec<E>>
    where
        E: Element + bytemuck::Pod,
    {
        let reduced = self.run(Operation::AllReduce(op), HostBuffer::from_values(values))?;
        Ok(reduced.to_values())
    }

    /// Gives every member's values to all, in group order. Collective; as many values on each rank.
    ///
    /// # Errors
    /// See [`Work::wait`].
    #[track_caller]
    pub fn all_gather_values<E>(&self, values: Vec<E>) -> Result<Vec<Vec<E>>>
    where
        E: Element + bytemuck::Pod,
    {
        let count = values.len();
        if count == 0 {
            self.run(Operation::AllGather, HostBuffer::from_values(values))?;
            return Ok(vec![Vec::new(); self.size()]);
        }
        let all = self
            .run(Operation::AllGather, HostBuffer::from_values(values))?
            .to_values::<E>();
        Ok(all.chunks(count).map(<[E]>::to_vec).collect())
    }

    /// Gives every member's text to all, in group order; lengths may differ. Collective.
    ///
    /// # Errors
    /// See [`Work::wait`].
    #[track_caller]
    pub fn all_gather_text(&self, text: &str) -> Result<Vec<String>> {
        let lengths = self.all_gather_values(vec![text.len() as u64])?;
        let longest = lengths.iter().map(|l| l[0] as usize).max().unwrap_or(0);
        let mut padded = text.as_bytes().to_vec();
        padded.resize(longest, 0);
        let all = self.all_gather_values(padded)?;
        Ok(all
            .iter()
            .zip(&lengths)
            .map(|(bytes, length)| {
                String::from_utf8_lossy(&bytes[..length[0] as usize]).into_owned()
            })
            .collect())
    }

    /// An error about a call that this rank can see to be wrong on its own.
    pub(crate) fn invalid_call(
        &self,
        operation: &str,
        problem: impl Into<String>,
        hint: impl Into<String>,
    ) -> DistError {
        DistError::InvalidCall {
            rank: self.rank(),
            group: self.name().into(),
            operation: operation.into(),
            problem: problem.into(),
            hint: hint.into(),
        }
    }
}
