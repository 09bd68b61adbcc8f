//! [`PipelineLinks`]: how the ranks of a pipeline reach their neighbours.

use burn_dist::mesh::{DeviceMesh, MeshAxis};
use burn_dist::{DistError, ProcessGroup, Result, World};

use crate::link::{Receiver, Sender};

/// A rank's four ways: forward and backward, to and from its neighbours in a ring. Each is a group of two
/// of its own, so that no direction waits for another.
#[derive(Debug)]
pub struct PipelineLinks {
    index: usize,
    ranks: usize,
    /// The rank in the world.
    rank: usize,
    pub(crate) to_next: Option<Sender>,
    pub(crate) from_before: Option<Receiver>,
    pub(crate) to_before: Option<Sender>,
    pub(crate) from_next: Option<Receiver>,
}

impl PipelineLinks {
    /// Of the ranks that differ from this one on the mesh's pipeline axis. All of them call this.
    ///
    /// # Errors
    /// As [`World::axis_group`].
    pub fn new(world: &World, mesh: &DeviceMesh) -> Result<Self> {
        let ranks = mesh.ranks(&[MeshAxis::Pp], world.rank())?;
        Self::over(world, &ranks)
    }

    /// Of these ranks, in the order of stages. All of them call this.
    ///
    /// # Errors
    /// [`DistError::Config`] if this rank is not among them; else as [`World::group`].
    pub fn over(world: &World, ranks: &[usize]) -> Result<Self> {
        let own = ranks.iter().position(|&rank| rank == world.rank());
        let Some(index) = own else {
            return Err(DistError::config(
                format!("rank {} is not in the pipeline {ranks:?}", world.rank()),
                "every rank makes the links of its own pipeline",
            ));
        };
        let n = ranks.len();
        let mut links = Self {
            index,
            ranks: n,
            rank: world.rank(),
            to_next: None,
            from_before: None,
            to_before: None,
            from_next: None,
        };
        if n == 1 {
            return Ok(links);
        }
        // Pair by pair, so that members make their groups in the same order.
        for pair in 0..n {
            let (first, second) = (pair, (pair + 1) % n);
            let pipe = |name: &str, from: usize, to: usize| {
                world.group(&format!("pp-{name}-{pair}"), &[ranks[from], ranks[to]])
            };
            if index == first || index == second {
                let forward = pipe("forward", first, second)?;
                let backward = pipe("backward", second, first)?;
                links.take(index == first, forward, backward);
            }
        }
        Ok(links)
    }

    fn take(&mut self, is_first: bool, forward: ProcessGroup, backward: ProcessGroup) {
        match is_first {
            true => {
                self.to_next = Some(Sender::new(forward));
                self.from_next = Some(Receiver::new(backward));
            }
            false => {
                self.from_before = Some(Receiver::new(forward));
                self.to_before = Some(Sender::new(backward));
            }
        }
    }

    /// This rank's position in the pipeline.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Number of ranks in the pipeline.
    pub fn num_ranks(&self) -> usize {
        self.ranks
    }

    /// This rank in the world.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The groups, for their traffic and to end them.
    pub fn groups(&self) -> impl Iterator<Item = &ProcessGroup> {
        let senders = [&self.to_next, &self.to_before].into_iter().flatten();
        let receivers = [&self.from_before, &self.from_next].into_iter().flatten();
        let sending = senders.map(Sender::group);
        sending.chain(receivers.map(Receiver::group))
    }
}
