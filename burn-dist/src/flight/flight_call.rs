//! [`FlightCall`]: a call as the recorder notes it, without allocating.

use std::fmt;
use std::panic::Location;

use serde::{Deserialize, Serialize};

/// Most dims that are kept of a shape.
const MAX_DIMS: usize = 6;

/// How far a call has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FlightState {
    /// Started; calls before it are not done.
    Queued,
    /// Running: it may be waiting for other ranks.
    Running,
    /// Ended well.
    Done,
    /// Ended with an error.
    Failed,
}

/// What belongs to the operation's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlightDetail {
    /// Nothing.
    None,
    /// The reduction.
    Reduction(&'static str),
    /// The root's index.
    Root(usize),
    /// The partners' indices: receiver and sender.
    Partners(Option<usize>, Option<usize>),
}

/// One call: what, of which shape, from where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlightCall {
    pub(super) name: &'static str,
    pub(super) detail: FlightDetail,
    pub(super) dtype: &'static str,
    dims: [usize; MAX_DIMS],
    num_dims: u8,
    pub(super) site: &'static Location<'static>,
}

impl FlightCall {
    /// A call of the operation `name` on an input of this type and shape, made at `site`.
    pub fn new(
        name: &'static str,
        detail: FlightDetail,
        dtype: &'static str,
        shape: &[usize],
        site: &'static Location<'static>,
    ) -> Self {
        let num_dims = shape.len().min(MAX_DIMS);
        let mut dims = [0; MAX_DIMS];
        dims[..num_dims].copy_from_slice(&shape[..num_dims]);
        Self {
            name,
            detail,
            dtype,
            dims,
            num_dims: num_dims as u8,
            site,
        }
    }

    pub(super) fn shape(&self) -> &[usize] {
        &self.dims[..usize::from(self.num_dims)]
    }
}

impl fmt::Display for FlightCall {
    /// As in `all_reduce(sum)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        match self.detail {
            FlightDetail::None => Ok(()),
            FlightDetail::Reduction(reduction) => write!(f, "({reduction})"),
            FlightDetail::Root(root) => write!(f, "(root {root})"),
            FlightDetail::Partners(to, from) => {
                let to = to.map(|to| format!("to {to}"));
                let from = from.map(|from| format!("from {from}"));
                let both: Vec<String> = to.into_iter().chain(from).collect();
                write!(f, "({})", both.join(", "))
            }
        }
    }
}
