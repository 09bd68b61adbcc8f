//! Members of a group that share a host agree to share memory.

use std::str::FromStr;
use std::sync::Arc;

use super::lane::Lane;
use super::neighbour::Neighbour;
use super::segment::{Segment, TOKEN, descriptor};
use super::streams::Home;
use super::{Fault, Outgoing, Patience, StreamTransport, Transport};
use crate::communicator::CommunicatorOptions;
#[cfg(any(test, fuzzing))]
use crate::communicator::PeerConnection;

/// Finds out who shares a host, and puts the members of each host on shared memory: all of a host, or
/// none.
pub(in crate::communicator) fn negotiate(
    transport: &mut StreamTransport,
    index: usize,
    size: usize,
    options: &CommunicatorOptions,
    patience: Patience<'_>,
) -> Result<(), Fault> {
    let own = host_identity(options.host);
    let hosts = tell_all(transport, index, size, &own, patience)?;
    if let Some(index) = hosts.iter().position(String::is_empty) {
        let detail = "no host".into();
        return Err(Fault::Garbled { index, detail });
    }
    let neighbours: Vec<usize> = (0..size).filter(|&other| hosts[other] == own).collect();
    let place = |other: usize| neighbours.iter().position(|&n| n == other);
    let position = place(index).expect("invariant: a member is on its own host");
    // The first member of a host makes the segment before it knows whether the others can reach it.
    let mut made = None;
    let mut words = String::new();
    if position == 0
        && neighbours.len() > 1
        && options.shared_memory
        && let Some((segment, file, token)) = make(neighbours.len())
    {
        words = format!("{} {} {token}", std::process::id(), descriptor(&file));
        made = Some((segment, file));
    }
    let offers = tell_all(transport, index, size, &words, patience)?;
    let segment = match made {
        Some((segment, file)) => Some((segment, Some(file))),
        None if position == 0 || !options.shared_memory => None,
        None => open(&offers[neighbours[0]], neighbours.len()).map(|segment| (segment, None)),
    };
    let answer = if segment.is_some() { "yes" } else { "no" };
    let answers = tell_all(transport, index, size, answer, patience)?;
    // The file was kept open until everybody had opened it.
    let segment = segment.map(|(segment, _file)| Arc::new(segment));
    for member in 0..size {
        let first = hosts.iter().position(|host| *host == hosts[member]);
        transport.hosts[member] = first.expect("invariant: it is in the list itself");
    }
    let agreed = neighbours.iter().all(|&other| answers[other] == "yes");
    let reached = reach_all(transport, index, &neighbours, patience)?;
    let segment = segment.filter(|_| agreed && neighbours.len() > 1);
    let Some(segment) = segment else {
        return Ok(());
    };
    for &other in neighbours.iter().filter(|&&other| other != index) {
        let peer = place(other).expect("invariant: a neighbour");
        transport.lanes.lanes[other] = Some(Lane::shared(segment.clone(), position, peer));
    }
    transport.neighbours = reached;
    transport.home = Some(Home {
        segment,
        own: position,
    });
    Ok(())
}

/// The system may or may not let neighbours read each other's memory: all of a host, or none.
fn reach_all(
    transport: &mut StreamTransport,
    index: usize,
    neighbours: &[usize],
    patience: Patience<'_>,
) -> Result<Vec<Option<Neighbour>>, Fault> {
    let size = transport.hosts.len();
    let probe: Box<[u8; TOKEN]> = Box::new(random_token().unwrap_or_default());
    let (process, address) = (std::process::id(), probe.as_ptr() as u64);
    let word = format!("{process} {address} {}", hexadecimal(&probe));
    let words = tell_all(transport, index, size, &word, patience)?;
    let mut reached = vec![None; size];
    for &other in neighbours.iter().filter(|&&other| other != index) {
        reached[other] = reach(&words[other]);
    }
    let all = neighbours
        .iter()
        .all(|&other| other == index || reached[other].is_some());
    let answer = if all { "yes" } else { "no" };
    let answers = tell_all(transport, index, size, answer, patience)?;
    let agreed = neighbours.iter().all(|&other| answers[other] == "yes");
    Ok(match agreed {
        true => reached,
        false => vec![None; size],
    })
}

/// This boot of this machine, and the part of it that this process sees: processes in containers or
/// network namespaces of their own are on hosts of their own.
fn host_identity(host: Option<u32>) -> String {
    if let Some(number) = host {
        return format!("host {number}");
    }
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let space = |name: &str| {
        let link = std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap_or_default();
        link.display().to_string()
    };
    match boot {
        Ok(id) => format!("{} {} {}", id.trim(), space("net"), space("pid")),
        Err(_) => format!("unknown {}", std::process::id()),
    }
}

fn random_token() -> Option<[u8; TOKEN]> {
    let mut token = [0; TOKEN];
    getrandom::fill(&mut token).ok()?;
    Some(token)
}

fn hexadecimal(token: &[u8; TOKEN]) -> String {
    token.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse_token(text: &str) -> Option<[u8; TOKEN]> {
    let mut token = [0; TOKEN];
    for (i, byte) in token.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(token)
}

/// Two numbers and a token.
fn parse_words<A: FromStr, B: FromStr>(words: &str) -> Option<(A, B, [u8; TOKEN])> {
    let mut words = words.split(' ');
    let (one, other) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some((one, other, parse_token(words.next()?)?))
}

fn make(size: usize) -> Option<(Segment, std::os::fd::OwnedFd, String)> {
    let token = random_token()?;
    let (segment, file) = Segment::create(size, &token).ok()?;
    Some((segment, file, hexadecimal(&token)))
}

/// `PROCESS DESCRIPTOR TOKEN`, or nothing.
fn open(words: &str, size: usize) -> Option<Segment> {
    let (process, descriptor, token) = parse_words(words)?;
    Segment::open(process, descriptor, size, &token).ok()
}

/// `PROCESS ADDRESS TOKEN`: whether the token can be read there.
fn reach(words: &str) -> Option<Neighbour> {
    let (process, address, token) = parse_words(words)?;
    Neighbour::reach(process, address, &token)
}

/// Everybody's words, by member.
fn tell_all(
    transport: &mut StreamTransport,
    index: usize,
    size: usize,
    text: &str,
    patience: Patience<'_>,
) -> Result<Vec<String>, Fault> {
    let bytes = text.as_bytes();
    let others: Vec<usize> = (0..size).filter(|&other| other != index).collect();
    let messages: Vec<Outgoing<'_>> = others.iter().map(|&to| Outgoing { to, bytes }).collect();
    let mut heard = vec![Vec::new(); others.len()];
    transport.exchange_messages(&messages, &mut heard, patience)?;
    let mut all = vec![text.to_string(); size];
    for (other, bytes) in others.into_iter().zip(heard) {
        all[other] = String::from_utf8_lossy(&bytes).into_owned();
    }
    Ok(all)
}

/// For `fuzzing.rs`, which cannot name this module.
#[cfg(any(test, fuzzing))]
impl PeerConnection {
    /// Reads a member's words, as a segment and as an address; nothing is opened. Whether they can be
    /// read as an address.
    pub(crate) fn fuzz_words(bytes: &[u8]) -> bool {
        let words = String::from_utf8_lossy(bytes);
        let _ = parse_words::<u32, i32>(&words);
        parse_words::<i32, u64>(&words).is_some()
    }

    /// Words that can be read.
    #[cfg(test)]
    pub(crate) fn fuzz_words_of(process: i32, address: u64) -> Vec<u8> {
        format!("{process} {address} {}", hexadecimal(&[7; TOKEN])).into()
    }
}
