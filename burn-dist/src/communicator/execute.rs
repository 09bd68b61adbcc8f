//! One call from its check to its output.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use burn::tensor::DType;

use super::algorithms::{self, Links, Reduction};
use super::engine::FaultOrError;
use super::header::Header;
use super::transport::{Fault, Outgoing, Patience, Transport};
use super::{Algorithm, Call, HostBuffer, Members, Operation, ReduceOp, Traffic};
use crate::error::{DistError, Result};

/// Refuses what this rank can see to be wrong on its own, before anything is sent.
pub(super) fn validate(call: &Call, members: &Members) -> Result<()> {
    let n = members.size();
    let (shape, dtype) = (call.input.shape(), call.input.dtype());
    let refuse = |problem: String, hint: &str| {
        Err(DistError::InvalidCall {
            rank: members.rank(),
            group: members.name().into(),
            operation: call.operation.name().into(),
            problem,
            hint: hint.into(),
        })
    };
    let index = |what: &str, index: usize| match index < n {
        true => Ok(()),
        false => refuse(
            format!("{what} is index {index}, but the group has {n} ranks"),
            "an index counts from 0 inside the group",
        ),
    };
    let divisible = || match shape.first() {
        Some(first) if first.is_multiple_of(n) => Ok(()),
        _ => refuse(
            format!("the first dim of shape {shape:?} is not a multiple of the group's {n} ranks"),
            "pad it first",
        ),
    };
    if matches!(dtype, DType::QFloat(_)) {
        return refuse(
            "quantised tensors do not travel".into(),
            "dequantise them first",
        );
    }
    match &call.operation {
        Operation::AllReduce(op) => reducible(*op, dtype).map_or(Ok(()), |r| {
            refuse(
                format!("{op:?} of {}: {r}", dtype.name()),
                "use another reduction",
            )
        }),
        Operation::ReduceScatter(op) => match reducible(*op, dtype) {
            Some(r) => refuse(
                format!("{op:?} of {}: {r}", dtype.name()),
                "use another reduction",
            ),
            None => divisible(),
        },
        Operation::AllGather if shape.is_empty() => refuse(
            "a scalar has no dim to join along".into(),
            "give it one dim",
        ),
        Operation::Gather { .. } if shape.is_empty() => refuse(
            "a scalar has no dim to join along".into(),
            "give it one dim",
        ),
        Operation::AllGather | Operation::Barrier => Ok(()),
        Operation::Broadcast { root } | Operation::Gather { root } => index("the root", *root),
        Operation::Scatter { root } => {
            index("the root", *root)?;
            match members.index() == *root {
                true => divisible(),
                false if call.input.num_elements() == 0 => Ok(()),
                false => refuse(
                    format!("an input of shape {shape:?} on a rank that is not the root"),
                    "give an empty one there",
                ),
            }
        }
        Operation::AllToAll { .. } if shape.is_empty() => {
            refuse("a scalar has no dim to deal out".into(), "give it one dim")
        }
        Operation::AllToAll {
            send_counts,
            recv_counts,
        } => {
            let rows = shape[0];
            let total: usize = send_counts.iter().sum();
            let own = members.index();
            if send_counts.len() != n || recv_counts.len() != n || total != rows {
                return refuse(
                    format!(
                        "{rows} rows with send counts {send_counts:?} and receive counts {recv_counts:?} among {n} ranks"
                    ),
                    "give one count per member; the send counts add up to the rows",
                );
            }
            if send_counts[own] != recv_counts[own] {
                return refuse(
                    format!(
                        "{} rows to itself, but {} from itself",
                        send_counts[own], recv_counts[own]
                    ),
                    "a rank's own two counts are equal",
                );
            }
            Ok(())
        }
        Operation::SendRecv { to, from, receive } => {
            to.map_or(Ok(()), |to| index("the receiver", to))?;
            from.map_or(Ok(()), |from| index("the sender", from))?;
            let own = Some(members.index());
            if (*to == own || *from == own) && !(to == from && shape == receive.as_slice()) {
                return refuse(
                    format!("to {to:?} and from {from:?} with shapes {shape:?} and {receive:?}"),
                    "what a rank sends to itself it also receives",
                );
            }
            Ok(())
        }
    }
}

fn reducible(op: ReduceOp, dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::Bool(store) if DType::Bool(store).size() != 1 => {
            Some("booleans reduce as bytes only")
        }
        _ => op.refusal(dtype),
    }
}

/// The transport and what lasts from call to call.
#[derive(Debug)]
pub(super) struct Core {
    transport: Box<dyn Transport>,
    index: usize,
    sequence: u64,
    /// Point-to-point calls so far, by partner.
    pair_sequence: Vec<u64>,
    scratch: Vec<u64>,
    ended: bool,
}

/// A call that did not end well.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) fault: FaultOrError,
    pub(super) sequence: u64,
    pub(super) operation: String,
}

impl Core {
    pub(super) fn new(transport: Box<dyn Transport>, index: usize, size: usize) -> Self {
        Self {
            transport,
            index,
            sequence: 0,
            pair_sequence: vec![0; size],
            scratch: Vec::new(),
            ended: false,
        }
    }

    pub(super) fn abort(&mut self, cause: &str) {
        if !std::mem::replace(&mut self.ended, true) {
            self.transport.abort(cause);
        }
    }

    pub(super) fn leave(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.transport.leave();
        }
    }

    pub(super) fn run(
        &mut self,
        call: Call,
        members: &Members,
        algorithm: Algorithm,
        deadline: Instant,
        cancelled: &AtomicBool,
        traffic: &mut Traffic,
    ) -> std::result::Result<HostBuffer, Failed> {
        let patience = Patience {
            deadline,
            cancelled,
        };
        let (dtype, shape) = (call.input.dtype(), call.input.shape());
        let mut header = Header::new(self.sequence, &call.operation, dtype, shape);
        let name = call.operation.name();
        let frames = self.transport.frame_bytes();
        let outcome = if members.size() == 1 {
            alone(call)
        } else {
            self.agree(&mut header, members, patience, traffic)
                .and_then(|theirs| {
                    let links = Links {
                        transport: &mut *self.transport,
                        index: self.index,
                        size: members.size(),
                        patience,
                        traffic,
                        scratch: &mut self.scratch,
                    };
                    carry_out(call, algorithm, links, &theirs).map_err(FaultOrError::from)
                })
        };
        traffic.overhead += self.transport.frame_bytes() - frames;
        match outcome {
            Ok(output) => {
                traffic.calls += 1;
                if header.operation != "send_recv" {
                    self.sequence += 1;
                }
                Ok(output)
            }
            Err(fault) => Err(Failed {
                fault,
                sequence: header.sequence,
                // Partners compare under one name, of which each side is one half.
                operation: match header.operation.as_str() {
                    "send_recv" => name.into(),
                    _ => header.operation,
                },
            }),
        }
    }

    /// Exchanges headers with every member that takes part and compares them: all members for a
    /// collective, the partners for send and recv. Returns the others' headers.
    fn agree(
        &mut self,
        header: &mut Header,
        members: &Members,
        patience: Patience<'_>,
        traffic: &mut Traffic,
    ) -> std::result::Result<Vec<(usize, Header)>, FaultOrError> {
        let own = members.index();
        let mine: Vec<(usize, Header)> = match header.operation.as_str() {
            "send_recv" => self.partner_headers(header),
            _ => (0..members.size())
                .filter(|&other| other != own)
                .map(|other| (other, header.clone()))
                .collect(),
        };
        let encoded: Vec<Vec<u8>> = mine.iter().map(|(_, header)| header.encode()).collect();
        let messages: Vec<Outgoing<'_>> = mine
            .iter()
            .zip(&encoded)
            .map(|((to, _), bytes)| Outgoing { to: *to, bytes })
            .collect();
        let heard = self.transport.exchange_messages(&messages, patience)?;
        traffic.overhead += encoded.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
        let mut theirs = Vec::with_capacity(mine.len());
        for ((other, mine), bytes) in mine.into_iter().zip(heard) {
            let Some(heard) = Header::decode(&bytes) else {
                return Err(FaultOrError::Fault(Fault::Garbled {
                    index: other,
                    detail: "a header that cannot be read".into(),
                }));
            };
            if !mine.agrees(own, &heard, other) {
                header.sequence = mine.sequence;
                let mismatch = DistError::Mismatch {
                    rank: members.rank(),
                    group: members.name().into(),
                    sequence: mine.sequence,
                    differing: members.ranks()[other],
                    expected: mine.describe(),
                    got: heard.describe(),
                };
                return Err(FaultOrError::Error(Box::new(mismatch)));
            }
            theirs.push((other, heard));
        }
        Ok(theirs)
    }

    /// The header for each partner of a point-to-point call. Each pair counts its own calls, as
    /// partners need not have met equally often.
    fn partner_headers(&mut self, header: &mut Header) -> Vec<(usize, Header)> {
        let mut partners: Vec<usize> = [header.to, header.from]
            .into_iter()
            .flatten()
            .map(|index| index as usize)
            .filter(|&index| index != self.index)
            .collect();
        partners.dedup();
        partners
            .into_iter()
            .map(|partner| {
                header.sequence = self.pair_sequence[partner];
                self.pair_sequence[partner] += 1;
                (partner, header.clone())
            })
            .collect()
    }
}

/// A group of one: nothing travels, shapes and values are those of any other group.
fn alone(call: Call) -> std::result::Result<HostBuffer, FaultOrError> {
    Ok(match call.operation {
        Operation::SendRecv { from: None, .. } | Operation::Barrier => {
            HostBuffer::zeros(call.input.dtype(), vec![0])
        }
        _ => call.input,
    })
}

/// Moves the data of a call whose headers agree.
fn carry_out(
    call: Call,
    algorithm: Algorithm,
    mut links: Links<'_>,
    theirs: &[(usize, Header)],
) -> std::result::Result<HostBuffer, Fault> {
    let Call {
        operation,
        mut input,
    } = call;
    let (n, index, dtype) = (links.size, links.index, input.dtype());
    let with_rows = |shape: &[usize], rows: usize| {
        let mut shape = shape.to_vec();
        shape[0] = rows;
        HostBuffer::zeros(dtype, shape)
    };
    match operation {
        Operation::Barrier => Ok(HostBuffer::zeros(dtype, vec![0])),
        Operation::AllReduce(op) => {
            let reduction = Reduction { dtype, op };
            algorithms::all_reduce(algorithm, &mut links, reduction, input.bytes_mut())?;
            Ok(input)
        }
        Operation::ReduceScatter(op) => {
            let mut output = with_rows(input.shape(), input.shape()[0] / n);
            let reduction = Reduction { dtype, op };
            let target = output.bytes_mut();
            algorithms::reduce_scatter(algorithm, &mut links, reduction, input.bytes(), target)?;
            Ok(output)
        }
        Operation::AllGather => {
            let mut output = with_rows(input.shape(), input.shape()[0] * n);
            algorithms::all_gather(algorithm, &mut links, input.bytes(), output.bytes_mut())?;
            Ok(output)
        }
        Operation::AllToAll {
            send_counts,
            recv_counts,
        } => {
            let row = input.shape()[1..].iter().product::<usize>() * dtype.size();
            let bytes = |counts: &[usize]| counts.iter().map(|c| c * row).collect::<Vec<_>>();
            let mut output = with_rows(input.shape(), recv_counts.iter().sum());
            let (send, receive) = (bytes(&send_counts), bytes(&recv_counts));
            let target = output.bytes_mut();
            algorithms::all_to_all(&mut links, input.bytes(), &send, target, &receive)?;
            Ok(output)
        }
        Operation::Broadcast { root } => {
            algorithms::broadcast(&mut links, root, input.bytes_mut())?;
            Ok(input)
        }
        Operation::Gather { root } => {
            let rows = if index == root {
                input.shape()[0] * n
            } else {
                0
            };
            let mut output = with_rows(input.shape(), rows);
            algorithms::gather(&mut links, root, input.bytes(), output.bytes_mut())?;
            Ok(output)
        }
        Operation::Scatter { root } => {
            let shape: Vec<usize> = match theirs.iter().find(|(other, _)| *other == root) {
                Some((_, header)) => header.shape.iter().map(|&dim| dim as usize).collect(),
                None => input.shape().to_vec(),
            };
            let mut output = with_rows(&shape, shape[0] / n);
            algorithms::scatter(&mut links, root, input.bytes(), output.bytes_mut())?;
            Ok(output)
        }
        Operation::SendRecv { to, from, receive } => {
            if to == Some(index) {
                return Ok(input);
            }
            let shape = if from.is_some() { receive } else { vec![0] };
            let mut output = HostBuffer::zeros(dtype, shape);
            algorithms::send_recv(&mut links, to, input.bytes(), from, output.bytes_mut())?;
            Ok(output)
        }
    }
}
