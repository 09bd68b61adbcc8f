//! How each operation is carried out over a transport.
//!
//! | file | operations |
//! |---|---|
//! | `mod.rs` | all_reduce and reduce_scatter while the bytes travel, rank order |
//! | `direct.rs` | the same in whole arrays, two steps: the plain twin; all_gather |
//! | `ring.rs` | the same around a ring, rotated order |
//! | `host_first.rs` | the same inside hosts first, host order |
//! | `centralized.rs` | the same through a server, rank order |
//! | `personal.rs` | all_to_all, broadcast, gather, scatter, send and recv |

mod centralized;
mod direct;
mod host_first;
mod personal;
mod ring;

use burn::tensor::DType;
use smallvec::SmallVec;

use super::transport::{Announcement, Arrays, Fault, Incoming, Outgoing, Patience, Transport};
use super::{Algorithm, Operation, ReduceOp, Traffic};
use crate::communicator::chunks::Chunks;

pub(super) use personal::{all_to_all, broadcast, gather, scatter, send_recv};

/// What an operation works with: the transport, and what it counts and reuses.
pub(super) struct Links<'a> {
    pub(super) transport: &'a mut dyn Transport,
    pub(super) index: usize,
    pub(super) size: usize,
    pub(super) patience: Patience<'a>,
    /// Goes ahead of the first exchange.
    pub(super) announcement: Option<Announcement<'a>>,
    pub(super) traffic: &'a mut Traffic,
    /// Kept between calls, so that a steady state allocates nothing.
    pub(super) scratch: &'a mut Vec<u64>,
    /// `Direct` reduces while the bytes travel; else in whole arrays.
    pub(super) pipelined: bool,
}

/// A reduction's element type and operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reduction {
    pub(super) dtype: DType,
    pub(super) op: ReduceOp,
}

impl Links<'_> {
    /// Sends and receives at the same time, and counts.
    fn exchange(
        &mut self,
        outgoing: &[Outgoing<'_>],
        incoming: &mut [Incoming<'_>],
    ) -> Result<(), Fault> {
        let announcement = self.announcement.take();
        self.transport
            .exchange(announcement, outgoing, incoming, self.patience)?;
        for outgoing in outgoing {
            self.traffic.sent[outgoing.to] += outgoing.bytes.len() as u64;
        }
        for incoming in incoming {
            self.traffic.received[incoming.from] += incoming.bytes.len() as u64;
        }
        Ok(())
    }

    /// Reduces while the bytes travel, and counts as the direct exchange does.
    fn reduce(&mut self, reduction: Reduction, arrays: Arrays<'_>) -> Result<(), Fault> {
        let element = reduction.dtype.size();
        let chunks = Chunks::new(arrays.input().len() / element, self.size);
        let bytes = |index: usize| chunks.byte_range(index, element).len() as u64;
        let shared = matches!(arrays, Arrays::InPlace(_));
        let announcement = self.announcement.take();
        self.transport
            .reduce(announcement, reduction, arrays, self.patience)?;
        for peer in self.others() {
            let (own, theirs) = (bytes(self.index), bytes(peer));
            self.traffic.sent[peer] += theirs + if shared { own } else { 0 };
            self.traffic.received[peer] += own + if shared { theirs } else { 0 };
        }
        Ok(())
    }

    /// All members but this one, in index order.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (index, size) = (self.index, self.size);
        (0..size).filter(move |&other| other != index)
    }
}

/// Arrays from and to a few members, without allocating.
type Few<T> = SmallVec<[T; 8]>;

/// Cuts `bytes` at consecutive ranges into slices that can be written one beside the other.
fn cut_mut(mut bytes: &mut [u8], lengths: impl Iterator<Item = usize>) -> Few<&mut [u8]> {
    lengths
        .map(|length| {
            let (head, rest) = std::mem::take(&mut bytes).split_at_mut(length);
            bytes = rest;
            head
        })
        .collect()
}

/// `bytes` of scratch memory, aligned for every element type.
fn scratch(memory: &mut Vec<u64>, bytes: usize) -> &mut [u8] {
    let words = bytes.div_ceil(8);
    if memory.len() < words {
        memory.resize(words, 0);
    }
    &mut bytemuck::cast_slice_mut(memory)[..bytes]
}

/// Rounds up so that the next array starts aligned.
fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(64)
}

/// Host first is the direct exchange where all members share one host or none shares one.
fn effective(algorithm: Algorithm, links: &Links<'_>) -> Algorithm {
    on_hosts(algorithm, links.transport.hosts())
}

fn on_hosts(algorithm: Algorithm, hosts: &[usize]) -> Algorithm {
    match algorithm {
        Algorithm::HostFirst if !host_first::matters(hosts) => Algorithm::Direct,
        other => other,
    }
}

/// Of the input; this member's reduced chunk goes to the output.
type ReduceChunks = fn(&mut Links<'_>, Reduction, Chunks, &[u8], &mut [u8]) -> Result<(), Fault>;

/// In elements of so many bytes; every chunk reaches every member.
type GatherChunks = fn(&mut Links<'_>, Chunks, usize, &mut [u8]) -> Result<(), Fault>;

/// An algorithm that reduces a chunk on each member, and gathers chunks.
struct Phases {
    reduce: ReduceChunks,
    gather: GatherChunks,
}

const RING: Phases = Phases {
    reduce: ring::reduce_chunks,
    gather: ring::gather_chunks,
};

const HOST_FIRST: Phases = Phases {
    reduce: host_first::reduce_chunks,
    gather: host_first::gather_chunks,
};

fn chunks_in_place(
    links: &mut Links<'_>,
    reduction: Reduction,
    data: &mut [u8],
    phases: &Phases,
) -> Result<(), Fault> {
    let element = reduction.dtype.size();
    let chunks = Chunks::new(data.len() / element, links.size);
    let own = chunks.byte_range(links.index, element);
    let mut reduced = vec![0; own.len()];
    (phases.reduce)(links, reduction, chunks, data, &mut reduced)?;
    data[own].copy_from_slice(&reduced);
    (phases.gather)(links, chunks, element, data)
}

fn chunk(
    links: &mut Links<'_>,
    reduction: Reduction,
    input: &[u8],
    output: &mut [u8],
    phases: &Phases,
) -> Result<(), Fault> {
    let chunks = Chunks::new(input.len() / reduction.dtype.size(), links.size);
    (phases.reduce)(links, reduction, chunks, input, output)
}

/// This member's part lies in its place already.
fn gather_parts(
    links: &mut Links<'_>,
    part: usize,
    output: &mut [u8],
    phases: &Phases,
) -> Result<(), Fault> {
    let chunks = Chunks::new(part * links.size, links.size);
    (phases.gather)(links, chunks, 1, output)
}

/// Whether a call is carried out in one exchange with all members, ahead of which it can be announced.
pub(super) fn is_one_exchange(
    operation: &Operation,
    algorithm: Algorithm,
    pipelined: bool,
    hosts: &[usize],
) -> bool {
    let direct = on_hosts(algorithm, hosts) == Algorithm::Direct;
    match operation {
        Operation::AllReduce(_) | Operation::ReduceScatter(_) => direct && pipelined,
        Operation::AllGather => direct,
        Operation::AllToAll { .. } | Operation::Broadcast { .. } | Operation::Gather { .. } => true,
        // A barrier has no exchange, the shape of a scatter comes with the words, and two partners
        // have words of their own.
        Operation::Barrier | Operation::Scatter { .. } | Operation::SendRecv { .. } => false,
    }
}

/// Reduces `data` in place on every member.
pub(super) fn all_reduce(
    algorithm: Algorithm,
    links: &mut Links<'_>,
    reduction: Reduction,
    data: &mut [u8],
) -> Result<(), Fault> {
    match effective(algorithm, links) {
        Algorithm::Direct if links.pipelined => links.reduce(reduction, Arrays::InPlace(data)),
        Algorithm::Direct => direct::all_reduce(links, reduction, data),
        Algorithm::Ring => chunks_in_place(links, reduction, data, &RING),
        Algorithm::HostFirst => chunks_in_place(links, reduction, data, &HOST_FIRST),
        Algorithm::Centralized => centralized::all_reduce(links, reduction, data),
    }
}

/// Reduces `input`, of `size` equal parts, and writes this member's part to `output`.
pub(super) fn reduce_scatter(
    algorithm: Algorithm,
    links: &mut Links<'_>,
    reduction: Reduction,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Fault> {
    match effective(algorithm, links) {
        Algorithm::Direct if links.pipelined => {
            links.reduce(reduction, Arrays::Apart { input, output })
        }
        Algorithm::Direct => direct::reduce_scatter(links, reduction, input, output),
        Algorithm::Ring => chunk(links, reduction, input, output, &RING),
        Algorithm::HostFirst => chunk(links, reduction, input, output, &HOST_FIRST),
        Algorithm::Centralized => centralized::reduce_scatter(links, reduction, input, output),
    }
}

/// Gives every member's `input` to all, in index order.
pub(super) fn all_gather(
    algorithm: Algorithm,
    links: &mut Links<'_>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Fault> {
    let own = links.index * input.len();
    output[own..own + input.len()].copy_from_slice(input);
    match effective(algorithm, links) {
        Algorithm::Direct => direct::all_gather(links, input, output),
        Algorithm::Ring => gather_parts(links, input.len(), output, &RING),
        Algorithm::HostFirst => gather_parts(links, input.len(), output, &HOST_FIRST),
        Algorithm::Centralized => centralized::all_gather(links, input, output),
    }
}
