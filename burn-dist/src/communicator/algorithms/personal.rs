//! Operations without a reduction: all_to_all, broadcast, gather, scatter, send and recv.

use super::{Few, Links, cut_mut};
use crate::communicator::transport::{Fault, Incoming, Outgoing};

/// Lengths are in bytes, by index. What a member keeps for itself is copied.
pub(in crate::communicator) fn all_to_all(
    links: &mut Links<'_>,
    input: &[u8],
    send: &[usize],
    output: &mut [u8],
    receive: &[usize],
) -> Result<(), Fault> {
    let starts: Few<usize> = send
        .iter()
        .scan(0, |next, length| {
            let start = *next;
            *next += length;
            Some(start)
        })
        .collect();
    let part = |index: usize| &input[starts[index]..starts[index] + send[index]];
    let mut places = cut_mut(output, receive.iter().copied());
    places[links.index].copy_from_slice(part(links.index));
    let outgoing: Few<Outgoing<'_>> = links
        .others()
        .map(|to| Outgoing {
            to,
            bytes: part(to),
        })
        .collect();
    let mut incoming: Few<Incoming<'_>> = places
        .into_iter()
        .enumerate()
        .filter(|(from, _)| *from != links.index)
        .map(|(from, bytes)| Incoming { from, bytes })
        .collect();
    links.exchange(&outgoing, &mut incoming)
}

/// The root's bytes, in place on every member.
pub(in crate::communicator) fn broadcast(
    links: &mut Links<'_>,
    root: usize,
    data: &mut [u8],
) -> Result<(), Fault> {
    if links.index != root {
        let incoming = Incoming {
            from: root,
            bytes: data,
        };
        return links.exchange(&[], &mut [incoming]);
    }
    let outgoing: Few<Outgoing<'_>> = links
        .others()
        .map(|to| Outgoing { to, bytes: data })
        .collect();
    links.exchange(&outgoing, &mut [])
}

/// All inputs in index order to `output` on the root, which is empty elsewhere.
pub(in crate::communicator) fn gather(
    links: &mut Links<'_>,
    root: usize,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Fault> {
    if links.index != root {
        let outgoing = Outgoing {
            to: root,
            bytes: input,
        };
        return links.exchange(&[outgoing], &mut []);
    }
    let part = input.len();
    let mut places = cut_mut(output, (0..links.size).map(|_| part));
    places[root].copy_from_slice(input);
    let mut incoming: Few<Incoming<'_>> = places
        .into_iter()
        .enumerate()
        .filter(|(from, _)| *from != root)
        .map(|(from, bytes)| Incoming { from, bytes })
        .collect();
    links.exchange(&[], &mut incoming)
}

/// The root's `input` in equal parts; each member's part to `output`.
pub(in crate::communicator) fn scatter(
    links: &mut Links<'_>,
    root: usize,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Fault> {
    if links.index != root {
        let incoming = Incoming {
            from: root,
            bytes: output,
        };
        return links.exchange(&[], &mut [incoming]);
    }
    let part = output.len();
    output.copy_from_slice(&input[root * part..(root + 1) * part]);
    let outgoing: Few<Outgoing<'_>> = links
        .others()
        .map(|to| Outgoing {
            to,
            bytes: &input[to * part..(to + 1) * part],
        })
        .collect();
    links.exchange(&outgoing, &mut [])
}

/// `input` to `to` and `output` from `from`, at the same time.
pub(in crate::communicator) fn send_recv(
    links: &mut Links<'_>,
    to: Option<usize>,
    input: &[u8],
    from: Option<usize>,
    output: &mut [u8],
) -> Result<(), Fault> {
    let outgoing = to.map(|to| Outgoing { to, bytes: input });
    let incoming = from.map(|from| Incoming {
        from,
        bytes: output,
    });
    let mut incoming: Few<Incoming<'_>> = incoming.into_iter().collect();
    links.exchange(outgoing.as_slice(), &mut incoming)
}
