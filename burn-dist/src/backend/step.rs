//! [`Step`]: what one direction of a differentiable collective does; shapes and checks, no tensors.

use crate::communicator::ReduceOp;
use crate::error::Result;
use crate::group::ProcessGroup;

/// One direction (forward or backward) of a collective on a float tensor of shape `[..., d, ...]`,
/// `n` being the size of the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The tensor as it is; nothing is sent.
    Identity,
    /// Same shape: the reduction over ranks.
    AllReduce(ReduceOp),
    /// `d -> d/n` on `dim`: this rank's part of the reduction.
    ReduceScatter {
        /// How elements combine.
        op: ReduceOp,
        /// The dim that is split.
        dim: usize,
    },
    /// `d -> n*d` on `dim`: all parts in group order.
    AllGather {
        /// The dim that grows.
        dim: usize,
    },
    /// `d -> d/n` on `dim`: this rank's part; nothing is sent.
    Slice {
        /// The dim that is split.
        dim: usize,
    },
    /// `split_dim` is cut in `n` parts, part `i` goes to index `i`; what arrives is joined along
    /// `concat_dim`.
    AllToAll {
        /// The dim that shrinks to `d/n`.
        split_dim: usize,
        /// The dim that grows to `n*d`.
        concat_dim: usize,
    },
    /// Rows of `dim` in uneven parts: `send[i]` rows to index `i`, `receive[i]` rows from it.
    AllToAllUneven {
        /// The dim whose rows travel.
        dim: usize,
        /// Rows for each member.
        send: Vec<usize>,
        /// Rows from each member.
        receive: Vec<usize>,
    },
    /// Same shape: the root's tensor.
    Broadcast {
        /// Index of the sender.
        root: usize,
    },
    /// Same shape: the sum over ranks on the root, zeros elsewhere.
    ReduceToRoot {
        /// Index of the receiver.
        root: usize,
    },
    /// The whole tensor to `to`, a tensor of shape `receive` from `from`, at the same time.
    SendRecv {
        /// Index of the receiver of this rank's tensor.
        to: usize,
        /// Index of the sender of this rank's output.
        from: usize,
        /// Shape of the output.
        receive: Vec<usize>,
    },
}

impl Step {
    /// The name that stands in errors.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::AllReduce(_) => "all_reduce",
            Self::ReduceScatter { .. } => "reduce_scatter",
            Self::AllGather { .. } => "all_gather",
            Self::Slice { .. } => "slice",
            Self::AllToAll { .. } | Self::AllToAllUneven { .. } => "all_to_all",
            Self::Broadcast { .. } => "broadcast",
            Self::ReduceToRoot { .. } => "reduce_to_root",
            Self::SendRecv { .. } => "send_recv",
        }
    }

    /// The shape that comes out of `shape`.
    ///
    /// # Errors
    /// [`DistError::InvalidCall`](crate::DistError::InvalidCall) if a dim is missing or cannot be
    /// split evenly, if counts do not add up, or if an index is outside the group.
    pub fn output_shape(&self, shape: &[usize], group: &ProcessGroup) -> Result<Vec<usize>> {
        let n = group.size();
        let mut out = shape.to_vec();
        match self {
            Self::Identity | Self::AllReduce(_) => {}
            Self::Broadcast { root } | Self::ReduceToRoot { root } => {
                self.check_index(*root, "root", group)?;
            }
            Self::ReduceScatter { dim, .. } | Self::Slice { dim } => {
                self.check_split(shape, *dim, group)?;
                out[*dim] /= n;
            }
            Self::AllGather { dim } => {
                self.check_dim(shape, *dim, group)?;
                out[*dim] *= n;
            }
            Self::AllToAll {
                split_dim,
                concat_dim,
            } => {
                self.check_split(shape, *split_dim, group)?;
                self.check_dim(shape, *concat_dim, group)?;
                out[*split_dim] /= n;
                out[*concat_dim] *= n;
            }
            Self::AllToAllUneven { dim, send, receive } => {
                self.check_dim(shape, *dim, group)?;
                let total: usize = send.iter().sum();
                if send.len() != n || receive.len() != n || total != shape[*dim] {
                    return Err(group.invalid_call(
                        self.name(),
                        format!(
                            "dim {dim} of shape {shape:?} has {} rows, but the counts send {send:?} and receive {receive:?} among {n} ranks",
                            shape[*dim]
                        ),
                        "give one count per member; the send counts add up to the rows",
                    ));
                }
                out[*dim] = receive.iter().sum();
            }
            Self::SendRecv { to, from, receive } => {
                self.check_index(*to, "to", group)?;
                self.check_index(*from, "from", group)?;
                out.clone_from(receive);
            }
        }
        Ok(out)
    }

    fn check_dim(&self, shape: &[usize], dim: usize, group: &ProcessGroup) -> Result<()> {
        if dim < shape.len() {
            return Ok(());
        }
        Err(group.invalid_call(
            self.name(),
            format!("shape {shape:?} has no dim {dim}"),
            "count dims from 0",
        ))
    }

    fn check_split(&self, shape: &[usize], dim: usize, group: &ProcessGroup) -> Result<()> {
        self.check_dim(shape, dim, group)?;
        if shape[dim].is_multiple_of(group.size()) {
            return Ok(());
        }
        Err(group.invalid_call(
            self.name(),
            format!(
                "dim {dim} of shape {shape:?} is {}, not a multiple of the group's {} ranks",
                shape[dim],
                group.size()
            ),
            "pad the dim first",
        ))
    }

    fn check_index(&self, index: usize, what: &str, group: &ProcessGroup) -> Result<()> {
        if index < group.size() {
            return Ok(());
        }
        Err(group.invalid_call(
            self.name(),
            format!(
                "{what} is index {index}, but the group has {} ranks",
                group.size()
            ),
            "an index counts from 0 inside the group",
        ))
    }
}
