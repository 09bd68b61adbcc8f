//! Host first: sums inside a host travel between hosts, not the arrays of its members.
//!
//! Part `p` belongs to member `p`. On every host one member, the part's helper, adds what its host has
//! for it, in rank order; helpers send these sums to member `p`, which adds them in the order of the
//! hosts (that of their first members). Gathered parts go the other way: once to a helper on each other
//! host, and from there to everybody on it.
//!
//! ```text
//!   reduce    in the host: to the helpers | between hosts: to the owners      S(n-l)/n per host
//!   gather    between hosts: to the helpers | in the host: to everybody       S(n-l)/n per host
//! ```
//!
//! `l` members on a host send `l` times less to other hosts than in the direct exchange. The order is
//! `(a + b) + (c + d)` for two hosts of two: deterministic, but not rank order. 16-bit floats travel
//! between hosts as f32 while they are partial sums, so that they are rounded once.

use super::{Links, Reduction};
use crate::communicator::ReduceOp;
use crate::communicator::chunks::Chunks;
use crate::communicator::reduce::{finish_partial, partial_dtype, reduce_in_rank_order, widen};
use crate::communicator::transport::{Fault, Incoming, Outgoing};

/// Who is where. Pure.
struct Hosts {
    /// Members by host, hosts in the order of their first members.
    members: Vec<Vec<usize>>,
    /// Host of each member, and its position there.
    place: Vec<(usize, usize)>,
}

impl Hosts {
    fn new(numbers: &[usize]) -> Self {
        let mut members: Vec<Vec<usize>> = Vec::new();
        let mut known: Vec<usize> = Vec::new();
        let mut place = Vec::new();
        for (member, number) in numbers.iter().enumerate() {
            let host = known.iter().position(|n| n == number).unwrap_or_else(|| {
                known.push(*number);
                members.push(Vec::new());
                known.len() - 1
            });
            place.push((host, members[host].len()));
            members[host].push(member);
        }
        Self { members, place }
    }

    /// The member of a host that looks after a part.
    fn helper(&self, host: usize, part: usize) -> usize {
        let mates = &self.members[host];
        mates[self.place[part].1 % mates.len()]
    }

    /// The parts that a member looks after on its host, in order.
    fn helped_by(&self, member: usize) -> Vec<usize> {
        let host = self.place[member].0;
        let parts = 0..self.place.len();
        parts
            .filter(|&part| self.helper(host, part) == member)
            .collect()
    }

    fn mates(&self, member: usize) -> &[usize] {
        &self.members[self.place[member].0]
    }

    fn share_a_host(&self, a: usize, b: usize) -> bool {
        self.place[a].0 == self.place[b].0
    }
}

/// Whether summing inside hosts differs from the direct exchange.
pub(super) fn matters(hosts: &[usize]) -> bool {
    let alone = |a: usize| hosts.iter().filter(|&&host| host == hosts[a]).count() == 1;
    let one_host = hosts.iter().all(|&host| host == hosts[0]);
    !one_host && !(0..hosts.len()).all(alone)
}

fn outgoing(arrays: &[(usize, Vec<u8>)]) -> Vec<Outgoing<'_>> {
    arrays
        .iter()
        .map(|(to, bytes)| Outgoing { to: *to, bytes })
        .collect()
}

fn incoming(arrays: &mut [(usize, Vec<u8>)]) -> Vec<Incoming<'_>> {
    arrays
        .iter_mut()
        .map(|(from, bytes)| Incoming { from: *from, bytes })
        .collect()
}

/// Sums inside hosts, then between them; this member's reduced chunk goes to `output`.
pub(super) fn reduce_chunks(
    links: &mut Links<'_>,
    reduction: Reduction,
    chunks: Chunks,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Fault> {
    let hosts = Hosts::new(links.transport.hosts());
    let (own, element) = (links.index, reduction.dtype.size());
    let helped = hosts.helped_by(own);
    let part = |p: usize| &input[chunks.byte_range(p, element)];
    let len = |parts: &[usize]| -> usize { parts.iter().map(|&p| part(p).len()).sum() };

    let mates = hosts.mates(own).iter().copied().filter(|&mate| mate != own);
    let to_mates: Vec<(usize, Vec<u8>)> = mates
        .clone()
        .map(|mate| {
            let parts = hosts.helped_by(mate);
            (mate, parts.iter().flat_map(|&p| part(p)).copied().collect())
        })
        .collect();
    let mut from_mates: Vec<(usize, Vec<u8>)> =
        mates.map(|mate| (mate, vec![0; len(&helped)])).collect();
    links.exchange(&outgoing(&to_mates), &mut incoming(&mut from_mates))?;

    // What this host has for each part that this member looks after.
    let mut sums: Vec<(usize, Vec<u8>)> = Vec::new();
    let mut offset = 0;
    for &p in &helped {
        let range = offset..offset + part(p).len();
        offset = range.end;
        let arrays: Vec<Vec<u8>> = hosts
            .mates(own)
            .iter()
            .map(|&mate| {
                let theirs = from_mates.iter().find(|(from, _)| *from == mate);
                let bytes = theirs.map_or(part(p), |(_, bytes)| &bytes[range.clone()]);
                widen(reduction.dtype, bytes)
            })
            .collect();
        sums.push((p, add(reduction, &arrays)));
    }

    let (to_owners, at_home): (Vec<_>, Vec<_>) = sums
        .into_iter()
        .partition(|(p, _)| !hosts.share_a_host(*p, own));
    let (_, mine) = at_home
        .into_iter()
        .find(|(p, _)| *p == own)
        .expect("invariant: a member looks after its own part on its host");
    let mut from_helpers: Vec<(usize, Vec<u8>)> = (0..hosts.members.len())
        .map(|host| hosts.helper(host, own))
        .filter(|&helper| !hosts.share_a_host(helper, own))
        .map(|helper| (helper, vec![0; mine.len()]))
        .collect();
    links.exchange(&outgoing(&to_owners), &mut incoming(&mut from_helpers))?;

    let own_host = hosts.place[own].0;
    let mut others = from_helpers.into_iter().map(|(_, bytes)| bytes);
    let mut mine = Some(mine);
    let arrays: Vec<Vec<u8>> = (0..hosts.members.len())
        .map(|host| match host == own_host {
            true => mine.take().expect("invariant: one own host"),
            false => others.next().expect("invariant: one helper per host"),
        })
        .collect();
    let mut sum = add(reduction, &arrays);
    let n = links.size;
    finish_partial(reduction.dtype, reduction.op, n, &mut sum, output);
    Ok(())
}

/// Adds arrays of partial sums in their order; a mean divides later.
fn add(reduction: Reduction, arrays: &[Vec<u8>]) -> Vec<u8> {
    let op = match reduction.op {
        ReduceOp::Mean => ReduceOp::Sum,
        op => op,
    };
    let parts: Vec<&[u8]> = arrays.iter().map(Vec::as_slice).collect();
    let mut sum = arrays[0].clone();
    reduce_in_rank_order(partial_dtype(reduction.dtype), op, 0, &parts, &mut sum);
    sum
}

/// Once to a helper on each host, then inside hosts; every chunk reaches every member.
pub(super) fn gather_chunks(
    links: &mut Links<'_>,
    chunks: Chunks,
    element: usize,
    data: &mut [u8],
) -> Result<(), Fault> {
    let hosts = Hosts::new(links.transport.hosts());
    let own = links.index;
    let range = |p: usize| chunks.byte_range(p, element);
    let mine = data[range(own)].to_vec();

    let to_helpers: Vec<(usize, Vec<u8>)> = (0..hosts.members.len())
        .map(|host| hosts.helper(host, own))
        .filter(|&helper| !hosts.share_a_host(helper, own))
        .map(|helper| (helper, mine.clone()))
        .collect();
    let helped = hosts.helped_by(own);
    let mut from_owners: Vec<(usize, Vec<u8>)> = helped
        .iter()
        .filter(|&&p| !hosts.share_a_host(p, own))
        .map(|&p| (p, vec![0; range(p).len()]))
        .collect();
    links.exchange(&outgoing(&to_helpers), &mut incoming(&mut from_owners))?;
    for (p, bytes) in &from_owners {
        data[range(*p)].copy_from_slice(bytes);
    }

    // Every member hands on its own part and those that it looked after for other hosts.
    let handed_on = |member: usize| -> Vec<usize> {
        let mut parts = hosts.helped_by(member);
        parts.retain(|&p| p == member || !hosts.share_a_host(p, member));
        parts
    };
    let bundle: Vec<u8> = handed_on(own)
        .iter()
        .flat_map(|&p| &data[range(p)])
        .copied()
        .collect();
    let mates = hosts.mates(own).iter().copied().filter(|&mate| mate != own);
    let to_mates: Vec<Outgoing<'_>> = mates
        .clone()
        .map(|to| Outgoing { to, bytes: &bundle })
        .collect();
    let mut from_mates: Vec<(usize, Vec<u8>)> = mates
        .map(|mate| {
            let len = handed_on(mate).iter().map(|&p| range(p).len()).sum();
            (mate, vec![0; len])
        })
        .collect();
    links.exchange(&to_mates, &mut incoming(&mut from_mates))?;
    for (mate, bytes) in &from_mates {
        let mut offset = 0;
        for p in handed_on(*mate) {
            let place = range(p);
            let len = place.len();
            data[place].copy_from_slice(&bytes[offset..offset + len]);
            offset += len;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_one_helper_on_every_host() {
        for numbers in [
            vec![0, 0, 1, 1],
            vec![0, 1, 0, 1, 0],
            vec![0, 1, 1, 1],
            vec![5, 5, 5, 9],
        ] {
            let hosts = Hosts::new(&numbers);
            for member in 0..numbers.len() {
                let host = hosts.place[member].0;
                assert_eq!(hosts.helper(host, member), member, "{numbers:?}");
            }
            for host in 0..hosts.members.len() {
                let mut helped: Vec<usize> = hosts.members[host]
                    .iter()
                    .flat_map(|&member| hosts.helped_by(member))
                    .collect();
                helped.sort_unstable();
                assert!(helped.into_iter().eq(0..numbers.len()), "{numbers:?}");
            }
        }
    }
}
