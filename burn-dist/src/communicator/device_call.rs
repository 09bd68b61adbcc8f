//! [`DeviceCall`]: a call on arrays in a device's memory.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use burn::tensor::DType;

use super::{Chunks, Members, Operation, Traffic};

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
    /// What the call is for, as in [`Call`](super::Call).
    pub label: Option<Arc<str>>,
    /// What owns the memory. It is dropped once the work was waited for.
    pub keep: Box<dyn Send>,
}

impl DeviceCall {
    /// What members compare in host memory, where calls on host arrays have labels too.
    pub fn host_label(&self) -> String {
        match &self.label {
            Some(label) => format!("device memory: {label}"),
            None => "device memory".into(),
        }
    }

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

impl DeviceCall {
    /// Adds the payload that the call moves between members, whatever way the device's library takes: what
    /// [`Algorithm::Direct`](super::Algorithm::Direct) moves for the same call on host memory.
    pub fn count(&self, members: &Members, traffic: &mut Traffic) {
        let (n, own) = (members.size(), members.index());
        let elements: usize = self.shape.iter().product();
        let chunks = Chunks::new(elements, n);
        let width = self.shape.iter().skip(1).product::<usize>();
        // Elements to and from one other member.
        let moved = |peer: usize| -> (usize, usize) {
            match &self.operation {
                Operation::AllReduce(_) => {
                    let both = chunks.size(peer) + chunks.size(own);
                    (both, both)
                }
                Operation::ReduceScatter(_) => (elements / n, elements / n),
                Operation::AllGather => (elements, elements),
                Operation::Broadcast { root } => {
                    let of = |member: usize| if member == *root { elements } else { 0 };
                    (of(own), of(peer))
                }
                Operation::AllToAll {
                    send_counts,
                    recv_counts,
                } => (send_counts[peer] * width, recv_counts[peer] * width),
                Operation::SendRecv { to, from, receive } => {
                    let received = receive.iter().product::<usize>();
                    let of = |other: &Option<usize>, len| match *other == Some(peer) {
                        true => len,
                        false => 0,
                    };
                    (of(to, elements), of(from, received))
                }
                Operation::Barrier | Operation::Gather { .. } | Operation::Scatter { .. } => (0, 0),
            }
        };
        for peer in (0..n).filter(|&peer| peer != own) {
            let (sent, received) = moved(peer);
            traffic.sent[peer] += (sent * self.dtype.size()) as u64;
            traffic.received[peer] += (received * self.dtype.size()) as u64;
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::communicator::{
        Call, Communicator, CommunicatorOptions, HostBuffer, InProcessHub, ReduceOp,
    };

    /// Payload of one call by each of `n` members: counted, and moved in host memory.
    fn both(n: usize, operation: impl Fn(usize) -> Operation + Sync) -> Vec<[Traffic; 2]> {
        let hub = InProcessHub::new();
        let ranks: Vec<usize> = (0..n).collect();
        let member = |rank: usize| {
            let members = Members::new("counted", &ranks, rank).expect("a valid group");
            let host = hub.connect(&members, CommunicatorOptions::default(), None);
            let (operation, shape) = (operation(rank), vec![2 * n, 3]);
            let input = HostBuffer::zeros(DType::F32, shape.clone());
            host.run(Call::new(operation.clone(), input))
                .expect("no fault");
            let call = DeviceCall {
                operation,
                dtype: DType::F32,
                shape,
                send: 0,
                receive: 0,
                site: Location::caller(),
                label: None,
                keep: Box::new(()),
            };
            let mut counted = Traffic::new(n);
            call.count(&members, &mut counted);
            let Traffic { sent, received, .. } = host.traffic();
            let moved = Traffic {
                sent,
                received,
                ..Traffic::new(n)
            };
            [counted, moved]
        };
        std::thread::scope(|scope| {
            let threads = ranks.iter().map(|&rank| {
                let member = &member;
                scope.spawn(move || member(rank))
            });
            let threads: Vec<_> = threads.collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            ended.map(|traffic| traffic.expect("no panic")).collect()
        })
    }

    #[test]
    fn what_is_counted_is_what_host_memory_would_move() {
        let sum = ReduceOp::Sum;
        for n in [1, 2, 3, 4] {
            let next = |rank: usize| (rank + 1) % n;
            let before = |rank: usize| (rank + n - 1) % n;
            let operations: Vec<Arc<dyn Fn(usize) -> Operation + Sync + Send>> = vec![
                Arc::new(move |_| Operation::AllReduce(sum)),
                Arc::new(move |_| Operation::ReduceScatter(sum)),
                Arc::new(|_| Operation::AllGather),
                Arc::new(move |_| Operation::Broadcast { root: n - 1 }),
                Arc::new(move |_| Operation::AllToAll {
                    send_counts: vec![2; n],
                    recv_counts: vec![2; n],
                }),
                Arc::new(move |rank| Operation::SendRecv {
                    to: Some(next(rank)),
                    from: Some(before(rank)),
                    receive: vec![2 * n, 3],
                }),
            ];
            for operation in operations {
                for [counted, moved] in both(n, |rank| operation(rank)) {
                    assert_eq!(counted, moved, "{} of {n}", operation(0).name());
                }
            }
        }
    }
}
