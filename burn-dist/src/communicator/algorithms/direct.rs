//! Direct exchange: everyone sends every chunk to its owner, who adds in rank order and sends the
//! result to everyone.
//!
//! Two steps whatever the number of members, `2S(n-1)/n` bytes sent by each, canonical order.

use super::{Few, Links, Reduction, aligned, cut_mut, scratch};
use crate::communicator::chunks::Chunks;
use crate::communicator::reduce::reduce_in_rank_order;
use crate::communicator::transport::{Fault, Incoming, Outgoing};

pub(super) fn all_reduce(
    links: &mut Links<'_>,
    reduction: Reduction,
    data: &mut [u8],
) -> Result<(), Fault> {
    let element = reduction.dtype.size();
    let chunks = Chunks::new(data.len() / element, links.size);
    let own = chunks.byte_range(links.index, element);
    let outgoing: Vec<Outgoing<'_>> = links
        .others()
        .map(|to| Outgoing {
            to,
            bytes: &data[chunks.byte_range(to, element)],
        })
        .collect();
    let mut memory = std::mem::take(links.scratch);
    let received = receive_parts(links, &outgoing, own.len(), &mut memory);
    let reduced = received.map(|parts| {
        reduce_in_rank_order(
            reduction.dtype,
            reduction.op,
            links.index,
            &parts,
            &mut data[own],
        );
    });
    *links.scratch = memory;
    reduced?;
    let lengths = (0..links.size).map(|i| chunks.byte_range(i, element).len());
    share(links, cut_mut(data, lengths))
}

pub(super) fn reduce_scatter(
    links: &mut Links<'_>,
    reduction: Reduction,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Fault> {
    let part = output.len();
    let outgoing: Vec<Outgoing<'_>> = links
        .others()
        .map(|to| Outgoing {
            to,
            bytes: &input[to * part..(to + 1) * part],
        })
        .collect();
    output.copy_from_slice(&input[links.index * part..(links.index + 1) * part]);
    let mut memory = std::mem::take(links.scratch);
    let received = receive_parts(links, &outgoing, part, &mut memory);
    let reduced = received.map(|parts| {
        reduce_in_rank_order(reduction.dtype, reduction.op, links.index, &parts, output);
    });
    *links.scratch = memory;
    reduced
}

pub(super) fn all_gather(
    links: &mut Links<'_>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Fault> {
    let part = input.len();
    share(links, cut_mut(output, (0..links.size).map(|_| part)))
}

/// Sends what is outgoing and receives one part of `len` bytes from each other member; the parts
/// come back by index, this member's own one empty.
fn receive_parts<'m>(
    links: &mut Links<'_>,
    outgoing: &[Outgoing<'_>],
    len: usize,
    memory: &'m mut Vec<u64>,
) -> Result<Vec<&'m [u8]>, Fault> {
    let stride = aligned(len);
    let memory = scratch(memory, stride * links.size);
    let mut incoming: Vec<Incoming<'_>> = memory
        .chunks_mut(stride.max(1))
        .enumerate()
        .filter(|(from, _)| *from != links.index)
        .map(|(from, bytes)| Incoming {
            from,
            bytes: &mut bytes[..len],
        })
        .collect();
    links.exchange(outgoing, &mut incoming)?;
    let memory: &'m [u8] = memory;
    Ok((0..links.size)
        .map(|from| match from == links.index {
            true => &memory[..0],
            false => &memory[from * stride..from * stride + len],
        })
        .collect())
}

/// Sends this member's chunk to all and receives theirs, each into its place.
fn share(links: &mut Links<'_>, mut chunks: Few<&mut [u8]>) -> Result<(), Fault> {
    let own: &mut [u8] = std::mem::take(&mut chunks[links.index]);
    let own: &[u8] = own;
    let outgoing: Few<Outgoing<'_>> = links
        .others()
        .map(|to| Outgoing { to, bytes: own })
        .collect();
    let mut incoming: Few<Incoming<'_>> = chunks
        .into_iter()
        .enumerate()
        .filter(|(from, _)| *from != links.index)
        .map(|(from, bytes)| Incoming { from, bytes })
        .collect();
    links.exchange(&outgoing, &mut incoming)
}
