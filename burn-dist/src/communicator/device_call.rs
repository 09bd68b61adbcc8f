//! [`DeviceCall`]: a call on arrays in a device's memory.

use std::fmt;
use std::panic::Location;

use burn::tensor::DType;

use super::Operation;

/// One call on contiguous arrays in the memory of a device: what [`Call`](super::Call) is for host memory.
///
/// The output has the shape that [`DeviceCall::output_shape`] gives. Input and output may be the same memory for
/// [`Operation::AllReduce`] and [`Operation::Broadcast`], else they must not overlap.
pub struct DeviceCall {
    /// What to do.
    pub operation: Operation,
    /// Element type of input and output.
    pub dtype: DType,
    /// Shape of this rank's input.
    pub shape: Vec<usize>,
    /// Address of the input.
    pub send: u64,
    /// Address of the output.
    pub receive: u64,
    /// Where in the program the call is made, for the flight recorder.
    pub site: &'static Location<'static>,
    /// What owns the memory. It is dropped once the work was waited for.
    pub keep: Box<dyn Send>,
}

impl DeviceCall {
    /// The shape that comes out of a valid call on `shape` among `n` members; `None` for the operations that devices
    /// do not offer, [`Operation::Gather`] and [`Operation::Scatter`].
    pub fn output_shape(operation: &Operation, shape: &[usize], n: usize) -> Option<Vec<usize>> {
        let of_rows = |rows: usize| {
            let mut out = shape.to_vec();
            if let Some(first) = out.first_mut() {
                *first = rows;
            }
            Some(out)
        };
        let rows = shape.first().copied().unwrap_or(0);
        match operation {
            Operation::AllReduce(_) | Operation::Broadcast { .. } => Some(shape.to_vec()),
            Operation::ReduceScatter(_) => of_rows(rows / n),
            Operation::AllGather => of_rows(rows * n),
            Operation::AllToAll { recv_counts, .. } => of_rows(recv_counts.iter().sum()),
            Operation::SendRecv {
                from: Some(_),
                receive,
                ..
            } => Some(receive.clone()),
            Operation::SendRecv { from: None, .. } | Operation::Barrier => Some(vec![0]),
            Operation::Gather { .. } | Operation::Scatter { .. } => None,
        }
    }
}

impl fmt::Debug for DeviceCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceCall")
            .field("operation", &self.operation)
            .field("dtype", &self.dtype)
            .field("shape", &self.shape)
            .field("send", &self.send)
            .field("receive", &self.receive)
            .finish_non_exhaustive()
    }
}
