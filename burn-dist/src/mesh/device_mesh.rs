//! [`DeviceMesh`]: rank to coordinate and back, and every group of every axis.

use std::fmt;

use super::{AxisOrder, MeshAxis, ParallelDims};
use crate::error::{DistError, Result};

/// The ranks as a grid. Pure arithmetic; [`World`](crate::World) turns its groups into
/// process groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceMesh {
    dims: ParallelDims,
    order: AxisOrder,
    world_size: usize,
}

impl DeviceMesh {
    /// A mesh of `world_size` ranks in the default order, `tp-cp-ep-dp-pp`.
    ///
    /// # Errors
    /// [`DistError::Config`] if the degrees do not make up the world.
    pub fn new(dims: ParallelDims, world_size: usize) -> Result<Self> {
        Self::with_order(dims, world_size, AxisOrder::default())
    }

    /// A mesh in another order.
    ///
    /// # Errors
    /// As [`new`](Self::new); also if experts are asked for in an order in which their view cannot
    /// have the dense view's pipeline groups.
    pub fn with_order(dims: ParallelDims, world_size: usize, order: AxisOrder) -> Result<Self> {
        let dims = dims.validate(world_size)?;
        if dims.ep * dims.etp > 1 && dims.pp > 1 && !order.is_pp_outermost() {
            return Err(DistError::config(
                format!("in the order {order}, experts would cross pipeline stages"),
                "put pp last, as in tp-cp-ep-dp-pp",
            ));
        }
        Ok(Self {
            dims,
            order,
            world_size,
        })
    }

    /// The degrees.
    pub fn dims(&self) -> &ParallelDims {
        &self.dims
    }

    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// A rank's position on an axis.
    ///
    /// # Panics
    /// If the rank is outside the world.
    pub fn coordinate(&self, axis: MeshAxis, rank: usize) -> usize {
        assert!(
            rank < self.world_size,
            "rank {rank} is outside a world of {}",
            self.world_size
        );
        let (stride, degree) = self.stride(axis);
        rank / stride % degree
    }

    /// Distance in rank of neighbours on an axis, and its degree.
    fn stride(&self, axis: MeshAxis) -> (usize, usize) {
        if axis == MeshAxis::Ep {
            return (self.dims.etp, self.dims.ep);
        }
        let mut stride = 1;
        for &faster in self.order.dense() {
            if faster == axis {
                break;
            }
            stride *= self.dims.degree(faster);
        }
        (stride, self.dims.degree(axis))
    }

    /// The ranks that differ from `rank` on these axes only, in group order: the group of an axis,
    /// or of a product of axes. No axes: the rank alone.
    ///
    /// # Errors
    /// [`DistError::Config`] for an axis given twice, for experts together with a dense axis other
    /// than `pp`, and for a rank outside the world.
    pub fn ranks(&self, axes: &[MeshAxis], rank: usize) -> Result<Vec<usize>> {
        if rank >= self.world_size {
            return Err(DistError::config(
                format!(
                    "rank {rank} is outside a world of {} ranks",
                    self.world_size
                ),
                "ranks count from 0",
            ));
        }
        let mut steps = Vec::with_capacity(axes.len());
        for (i, &axis) in axes.iter().enumerate() {
            let clashes = axis == MeshAxis::Ep && axes.iter().any(|a| !self.is_beside_experts(*a));
            if axes[..i].contains(&axis) || clashes {
                return Err(DistError::config(
                    format!(
                        "no group over {}: {axis} stands twice, or beside an axis that it overlaps",
                        join(axes)
                    ),
                    "give each axis once; ep is a second view of dp, cp and tp and goes with pp only",
                ));
            }
            let (stride, degree) = self.stride(axis);
            steps.push((stride, degree));
        }
        let origin = steps.iter().fold(rank, |origin, (stride, degree)| {
            origin - rank / stride % degree * stride
        });
        steps.sort_unstable();
        let mut ranks = vec![origin];
        for (stride, degree) in steps {
            let block = ranks.clone();
            ranks = (0..degree)
                .flat_map(|i| block.iter().map(move |rank| rank + i * stride))
                .collect();
        }
        Ok(ranks)
    }

    fn is_beside_experts(&self, axis: MeshAxis) -> bool {
        matches!(axis, MeshAxis::Ep | MeshAxis::Pp)
    }

    /// All groups over these axes, ordered by their first rank.
    ///
    /// # Errors
    /// As [`ranks`](Self::ranks).
    pub fn groups(&self, axes: &[MeshAxis]) -> Result<Vec<Vec<usize>>> {
        let mut groups = Vec::new();
        for rank in 0..self.world_size {
            let group = self.ranks(axes, rank)?;
            if group[0] == rank {
                groups.push(group);
            }
        }
        Ok(groups)
    }

    /// The ranks that hold the same expert parameters as `rank` does: what `ep` and `etp` leave of a
    /// pipeline stage.
    ///
    /// # Errors
    /// [`DistError::Config`] for a rank outside the world.
    pub fn expert_data_parallel_ranks(&self, rank: usize) -> Result<Vec<usize>> {
        self.ranks(&[], rank)?;
        let stride = self.dims.ep * self.dims.etp;
        let degree = self.dims.expert_data_parallel();
        let origin = rank - rank / stride % degree * stride;
        Ok((0..degree).map(|i| origin + i * stride).collect())
    }

    /// A name for the group over these axes, as `dp_shard-cp`.
    pub fn group_name(axes: &[MeshAxis]) -> String {
        join(axes)
    }
}

fn join(axes: &[MeshAxis]) -> String {
    axes.iter()
        .map(|axis| axis.name())
        .collect::<Vec<_>>()
        .join("-")
}

impl fmt::Display for DeviceMesh {
    /// One line per rank with its coordinate on every axis that splits something.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<MeshAxis> = MeshAxis::ALL
            .into_iter()
            .filter(|&axis| self.dims.degree(axis) > 1)
            .collect();
        writeln!(f, "{} ranks, order {}", self.world_size, self.order)?;
        write!(f, "rank")?;
        for axis in &axes {
            write!(f, "  {axis}")?;
        }
        for rank in 0..self.world_size {
            write!(f, "\n{rank:>4}")?;
            for &axis in &axes {
                let width = axis.name().len() + 2;
                write!(f, "{:>width$}", self.coordinate(axis, rank))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
