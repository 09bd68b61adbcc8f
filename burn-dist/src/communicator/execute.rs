//! One call from its check to its output.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use smallvec::SmallVec;

use super::agreement::{compare, dealt_out};
use super::algorithms::{self, Links, Reduction, is_one_exchange};
use super::failed::{Failed, FaultOrError};
use super::header::{Header, encode};
use super::transport::{Announcement, Fault, Outgoing, Patience, Transport};
use super::{
    Algorithm, Call, CommunicatorOptions, HostBuffer, Members, MemoryPool, Operation, Traffic,
};

/// The transport and what lasts from call to call.
#[derive(Debug)]
pub(super) struct Core {
    transport: Box<dyn Transport>,
    index: usize,
    sequence: u64,
    /// Point-to-point calls so far, by partner.
    pair_sequence: Vec<u64>,
    /// This call's header, and those of the other members, in their order.
    header: Vec<u8>,
    /// The same as a message.
    frame: Vec<u8>,
    /// The same for up to two partners, each with its pair's number.
    pair_headers: [Vec<u8>; 2],
    heard: Vec<Vec<u8>>,
    scratch: Vec<u64>,
    traffic: Traffic,
    pool: MemoryPool,
    ended: bool,
}

pub(super) type Outcome<T> = std::result::Result<T, FaultOrError>;

impl Core {
    pub(super) fn new(
        transport: Box<dyn Transport>,
        index: usize,
        size: usize,
        pool: MemoryPool,
    ) -> Self {
        Self {
            transport,
            index,
            sequence: 0,
            pair_sequence: vec![0; size],
            header: Vec::new(),
            frame: Vec::new(),
            pair_headers: Default::default(),
            // Words that come in parts are kept here, at any time: room for common ones.
            heard: (1..size).map(|_| Vec::with_capacity(256)).collect(),
            scratch: Vec::new(),
            traffic: Traffic::new(size),
            pool,
            ended: false,
        }
    }

    pub(super) fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// The number that the next call gets: of the group, or of the pair.
    pub(super) fn next_sequence(&self, operation: &Operation) -> u64 {
        match operation {
            Operation::SendRecv { to, from, .. } => to
                .or(*from)
                .map_or(0, |partner| self.pair_sequence[partner]),
            _ => self.sequence,
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
        options: &CommunicatorOptions,
        deadline: Instant,
        cancelled: &AtomicBool,
    ) -> std::result::Result<HostBuffer, Failed> {
        let patience = Patience {
            deadline,
            cancelled,
        };
        let Call {
            operation,
            input,
            label,
            ..
        } = &call;
        let label = label.as_deref();
        let (dtype, shape) = (input.dtype(), input.shape());
        let name = operation.name();
        let of_a_pair = matches!(operation, Operation::SendRecv { .. });
        encode(
            self.sequence,
            operation,
            dtype,
            shape,
            label,
            &mut self.header,
        );
        let hosts = self.transport.hosts();
        let announced = options.check_calls
            && is_one_exchange(operation, options.algorithm, options.pipelined, hosts);
        let agreed = match members.size() {
            1 => Ok(None),
            _ if announced => Ok(None),
            _ if of_a_pair => self.agree_with_partners(members, patience),
            _ => self.agree(operation, members, options, patience),
        };
        let outcome = agreed.and_then(|root_shape| match members.size() {
            1 => alone(call),
            _ => self.carry_out(call, members, options, patience, announced, root_shape),
        });
        match outcome {
            Ok(output) => {
                self.traffic.calls += 1;
                if !of_a_pair {
                    self.sequence += 1;
                }
                Ok(output)
            }
            Err(fault) => {
                let header = Header::decode(&self.header);
                let header = header.expect("invariant: what was encoded can be read");
                Err(Failed {
                    fault,
                    sequence: header.sequence,
                    operation: if of_a_pair {
                        name.into()
                    } else {
                        header.operation.into()
                    },
                })
            }
        }
    }

    /// Moves the data of a call; its header goes ahead of it if the members have not agreed yet.
    fn carry_out(
        &mut self,
        call: Call,
        members: &Members,
        options: &CommunicatorOptions,
        patience: Patience<'_>,
        announced: bool,
        root_shape: Option<Vec<usize>>,
    ) -> Outcome<HostBuffer> {
        let header = self.header.as_slice();
        let mine = Header::decode(header).expect("invariant: what was encoded can be read");
        let alike = call.operation.fits_itself(members.index());
        let fits = |other: usize, words: &[u8]| {
            alike && words.starts_with(header)
                || Header::decode(words)
                    .is_some_and(|theirs| mine.agrees(members.index(), &theirs, other))
        };
        if announced {
            self.frame.clear();
            let length = (header.len() as u32).to_le_bytes();
            self.frame.extend_from_slice(&length);
            self.frame.extend_from_slice(header);
            let others = members.size() - 1;
            self.traffic.overhead += (others * self.frame.len()) as u64;
        }
        let announcement = announced.then(|| Announcement {
            frame: &self.frame,
            heard: &mut self.heard,
            fits: &fits,
        });
        let links = Links {
            transport: &mut *self.transport,
            index: self.index,
            size: members.size(),
            patience,
            announcement,
            traffic: &mut self.traffic,
            scratch: &mut self.scratch,
            pipelined: options.pipelined,
        };
        let done = carry_out(call, options.algorithm, links, root_shape, &self.pool);
        done.map_err(|fault| match fault {
            Fault::Disagrees { index } => {
                let place = index - usize::from(index > members.index());
                let compared = compare(members, &mine, index, &self.heard[place]);
                compared.expect_err("invariant: it does not fit")
            }
            fault => fault.into(),
        })
    }

    /// Exchanges headers with all members and compares them. Returns the shape that the root of a
    /// scatter gave, which only it knows.
    fn agree(
        &mut self,
        operation: &Operation,
        members: &Members,
        options: &CommunicatorOptions,
        patience: Patience<'_>,
    ) -> Outcome<Option<Vec<usize>>> {
        let needed = matches!(operation, Operation::Barrier | Operation::Scatter { .. });
        if !options.check_calls && !needed {
            return Ok(None);
        }
        let own = members.index();
        let others = (0..members.size()).filter(|&other| other != own);
        let bytes = self.header.as_slice();
        let messages: SmallVec<[Outgoing<'_>; 8]> =
            others.clone().map(|to| Outgoing { to, bytes }).collect();
        let heard = &mut self.heard;
        self.transport
            .exchange_messages(&messages, heard, patience)?;
        self.traffic.overhead += (messages.len() * (bytes.len() + 4)) as u64;
        let alike = !matches!(
            operation,
            Operation::AllToAll { .. } | Operation::Scatter { .. }
        );
        if alike && heard.iter().all(|theirs| theirs == bytes) {
            return Ok(None);
        }
        let mine = Header::decode(bytes).expect("invariant: what was encoded can be read");
        let mut root_shape = None;
        for (other, bytes) in others.zip(heard) {
            let theirs = compare(members, &mine, other, bytes)?;
            if matches!(operation, Operation::Scatter { root } if *root == other) {
                let shape = dealt_out(&theirs, members.size());
                root_shape = Some(shape.ok_or_else(|| Fault::Garbled {
                    index: other,
                    detail: "an array that cannot be dealt out".into(),
                })?);
            }
        }
        Ok(root_shape)
    }

    /// The same between the partners of a point-to-point call. Each pair counts its own calls, as
    /// partners need not have met equally often.
    fn agree_with_partners(
        &mut self,
        members: &Members,
        patience: Patience<'_>,
    ) -> Outcome<Option<Vec<usize>>> {
        let header = Header::decode(&self.header);
        let header = header.expect("invariant: what was encoded can be read");
        let mut partners: SmallVec<[usize; 2]> = [header.to, header.from]
            .into_iter()
            .flatten()
            .map(|index| index as usize)
            .filter(|&index| index != self.index)
            .collect();
        partners.dedup();
        for (&partner, header) in partners.iter().zip(&mut self.pair_headers) {
            let sequence = self.pair_sequence[partner];
            self.pair_sequence[partner] += 1;
            header.clone_from(&self.header);
            header[..8].copy_from_slice(&sequence.to_le_bytes());
        }
        let headers = &self.pair_headers;
        let messages: SmallVec<[Outgoing<'_>; 2]> = partners
            .iter()
            .zip(headers)
            .map(|(&to, bytes)| Outgoing { to, bytes })
            .collect();
        let heard = &mut self.heard[..partners.len()];
        self.transport
            .exchange_messages(&messages, heard, patience)?;
        self.traffic.overhead += messages
            .iter()
            .map(|m| m.bytes.len() as u64 + 4)
            .sum::<u64>();
        for ((&other, mine), theirs) in partners.iter().zip(headers).zip(&*heard) {
            let mine = Header::decode(mine).expect("invariant: what was encoded can be read");
            let compared = compare(members, &mine, other, theirs);
            if compared.is_err() {
                self.header[..8].copy_from_slice(&mine.sequence.to_le_bytes());
            }
            compared?;
        }
        Ok(None)
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
    root_shape: Option<Vec<usize>>,
    pool: &MemoryPool,
) -> std::result::Result<HostBuffer, Fault> {
    let Call {
        operation,
        mut input,
        ..
    } = call;
    let (n, index, dtype) = (links.size, links.index, input.dtype());
    let with_rows = |shape: &[usize], rows: usize| {
        let mut shape: SmallVec<[usize; 6]> = shape.into();
        shape[0] = rows;
        HostBuffer::recycled(pool, dtype, &shape)
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
            let bytes =
                |counts: &[usize]| counts.iter().map(|c| c * row).collect::<SmallVec<[_; 8]>>();
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
            let shape = root_shape.as_deref().unwrap_or(input.shape());
            let mut output = with_rows(shape, shape[0] / n);
            algorithms::scatter(&mut links, root, input.bytes(), output.bytes_mut())?;
            Ok(output)
        }
        Operation::SendRecv { to, from, receive } => {
            if to == Some(index) {
                return Ok(input);
            }
            let shape = if from.is_some() { &receive[..] } else { &[0] };
            let mut output = HostBuffer::recycled(pool, dtype, shape);
            algorithms::send_recv(&mut links, to, input.bytes(), from, output.bytes_mut())?;
            Ok(output)
        }
    }
}
