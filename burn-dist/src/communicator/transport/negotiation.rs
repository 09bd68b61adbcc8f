//! Members of a group agree whether they share memory.

use super::segment::{Segment, TOKEN, descriptor};
use super::{Fault, Outgoing, Patience, SharedMemoryTransport, TcpTransport, Transport};

/// Tries to put a group whose members are connected by TCP on shared memory: all of them, or
/// none. Members that do not share a host stay on TCP.
pub(in crate::communicator) fn negotiate(
    mut tcp: TcpTransport,
    index: usize,
    size: usize,
    patience: Patience<'_>,
) -> Result<Box<dyn Transport>, Fault> {
    let others: Vec<usize> = (0..size).filter(|&other| other != index).collect();
    let host = host_identity();
    // Index 0 makes the segment before it knows whether the others can reach it.
    let mut made = None;
    let mut words = format!("{host}\n");
    if index == 0
        && let Some((segment, file, token)) = make(size)
    {
        words += &format!("{} {} {token}", std::process::id(), descriptor(&file));
        made = Some((segment, file));
    }
    let heard = tell_all(&mut tcp, &others, &words, patience)?;
    let same_host = heard.iter().all(|text| text.lines().next() == Some(&host));
    let segment = match made {
        Some((segment, file)) => Some((segment, Some(file))),
        None if index == 0 => None,
        None => heard
            .first()
            .filter(|_| same_host)
            .and_then(|text| open(text.lines().nth(1)?, size))
            .map(|segment| (segment, None)),
    };
    let ready = same_host && segment.is_some();
    let answers = tell_all(
        &mut tcp,
        &others,
        if ready { "yes" } else { "no" },
        patience,
    )?;
    // The file was kept open until everybody had opened it.
    let segment = segment.map(|(segment, _file)| segment);
    match segment.filter(|_| ready && answers.iter().all(|answer| answer == "yes")) {
        None => Ok(Box::new(tcp)),
        Some(segment) => match SharedMemoryTransport::new(segment, tcp, index, size) {
            Ok(transport) => Ok(Box::new(transport)),
            Err(error) => Err(Fault::Lost {
                indices: others,
                detail: error.to_string(),
            }),
        },
    }
}

/// This boot of this machine. Processes in containers may share it without seeing each other: then
/// opening the segment fails, and the group stays on TCP.
fn host_identity() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_or_else(
        |_| format!("unknown {}", std::process::id()),
        |id| id.trim().into(),
    )
}

fn make(size: usize) -> Option<(Segment, std::os::fd::OwnedFd, String)> {
    let mut token = [0; TOKEN];
    getrandom::fill(&mut token).ok()?;
    let (segment, file) = Segment::create(size, &token).ok()?;
    let text = token.iter().map(|byte| format!("{byte:02x}")).collect();
    Some((segment, file, text))
}

fn open(words: &str, size: usize) -> Option<Segment> {
    let mut words = words.split(' ');
    let (process, descriptor) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let text = words.next()?;
    let mut token = [0; TOKEN];
    for (i, byte) in token.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Segment::open(process, descriptor, size, &token).ok()
}

fn tell_all(
    tcp: &mut TcpTransport,
    others: &[usize],
    text: &str,
    patience: Patience<'_>,
) -> Result<Vec<String>, Fault> {
    let bytes = text.as_bytes();
    let messages: Vec<Outgoing<'_>> = others.iter().map(|&to| Outgoing { to, bytes }).collect();
    let heard = tcp.exchange_messages(&messages, patience)?;
    Ok(heard
        .iter()
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .collect())
}
