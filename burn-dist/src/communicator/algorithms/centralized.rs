//! Centralized: index 0 is a parameter server. It receives every array, adds in rank order and sends
//! the result; it moves `(n-1)` times what the others move. The baseline that a ring removes.

use super::{Links, Reduction, aligned, scratch};
use crate::communicator::reduce::reduce_in_rank_order;
use crate::communicator::transport::{Fault, Incoming, Outgoing};

const SERVER: usize = 0;

pub(super) fn all_reduce(
    links: &mut Links<'_>,
    reduction: Reduction,
    data: &mut [u8],
) -> Result<(), Fault> {
    if links.index == SERVER {
        collect(links, reduction, data)?;
        let outgoing: Vec<Outgoing<'_>> = links
            .others()
            .map(|to| Outgoing { to, bytes: data })
            .collect();
        return links.exchange(&outgoing, &mut []);
    }
    let to = SERVER;
    links.exchange(&[Outgoing { to, bytes: data }], &mut [])?;
    receive(links, data)
}

pub(super) fn reduce_scatter(
    links: &mut Links<'_>,
    reduction: Reduction,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Fault> {
    let part = output.len();
    if links.index == SERVER {
        let mut sum = input.to_vec();
        collect(links, reduction, &mut sum)?;
        let outgoing: Vec<Outgoing<'_>> = links
            .others()
            .map(|to| Outgoing {
                to,
                bytes: &sum[to * part..(to + 1) * part],
            })
            .collect();
        links.exchange(&outgoing, &mut [])?;
        output.copy_from_slice(&sum[..part]);
        return Ok(());
    }
    let (to, bytes) = (SERVER, input);
    links.exchange(&[Outgoing { to, bytes }], &mut [])?;
    receive(links, output)
}

pub(super) fn all_gather(
    links: &mut Links<'_>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Fault> {
    if links.index == SERVER {
        let part = input.len();
        let mut incoming: Vec<Incoming<'_>> = output
            .chunks_mut(part.max(1))
            .enumerate()
            .skip(1)
            .map(|(from, bytes)| Incoming { from, bytes })
            .collect();
        links.exchange(&[], &mut incoming)?;
        let outgoing: Vec<Outgoing<'_>> = links
            .others()
            .map(|to| Outgoing { to, bytes: output })
            .collect();
        return links.exchange(&outgoing, &mut []);
    }
    let (to, bytes) = (SERVER, input);
    links.exchange(&[Outgoing { to, bytes }], &mut [])?;
    receive(links, output)
}

fn receive(links: &mut Links<'_>, bytes: &mut [u8]) -> Result<(), Fault> {
    let from = SERVER;
    links.exchange(&[], &mut [Incoming { from, bytes }])
}

/// The server's half: receives all arrays and reduces them into its own.
fn collect(links: &mut Links<'_>, reduction: Reduction, data: &mut [u8]) -> Result<(), Fault> {
    let len = data.len();
    let stride = aligned(len);
    let mut memory = std::mem::take(links.scratch);
    let parts = scratch(&mut memory, stride * links.size);
    let mut incoming: Vec<Incoming<'_>> = parts
        .chunks_mut(stride.max(1))
        .enumerate()
        .skip(1)
        .map(|(from, bytes)| Incoming {
            from,
            bytes: &mut bytes[..len],
        })
        .collect();
    let outcome = links.exchange(&[], &mut incoming);
    if outcome.is_ok() {
        let parts: Vec<&[u8]> = (0..links.size)
            .map(|from| match from == SERVER {
                true => &parts[..0],
                false => &parts[from * stride..from * stride + len],
            })
            .collect();
        reduce_in_rank_order(reduction.dtype, reduction.op, SERVER, &parts, data);
    }
    *links.scratch = memory;
    outcome
}
