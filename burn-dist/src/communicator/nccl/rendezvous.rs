//! How members come to one NCCL communicator: over the one that they have, before anything can hang.
#![allow(unsafe_code)]

use super::connection::{Connection, Fault, Patience};
use super::nccl_functions::{SUCCESS, UniqueId};
use super::nccl_library::words;
use super::nccl_runtime::NcclRuntime;
use crate::communicator::{Call, Communicator, CommunicatorOptions, HostBuffer, Operation};
use crate::deadline::deadline;
use crate::error::{DistError, Result};

/// NCCL's version, the device, and whether the member could say so.
const CARD: usize = 12 + 16 + 1;

/// Opens the NCCL communicator of all members of `inner`.
pub(super) fn meet(
    runtime: &NcclRuntime,
    inner: &dyn Communicator,
    options: &CommunicatorOptions,
) -> Result<Connection> {
    compare(runtime, inner)?;
    let members = inner.members();
    let (index, size) = (members.index(), members.size());
    let id = agree_on_id(runtime, inner)?;
    let given_up = || inner.failure().is_some();
    let patience = Patience {
        deadline: deadline(options.startup_timeout),
        given_up: &given_up,
    };
    let nccl = runtime.library().functions().clone();
    let opened = Connection::open(nccl, runtime.context().clone(), id, (index, size), patience);
    all_came(opened, inner, options)
}

/// Opens the NCCL communicator of the members of `inner`, a part of those of `whole`. All of these do so.
pub(super) fn part(
    whole: &Connection,
    outer: &dyn Communicator,
    inner: &dyn Communicator,
    options: &CommunicatorOptions,
) -> Result<Connection> {
    let members = inner.members();
    let first = members.ranks()[0];
    let place = outer
        .members()
        .ranks()
        .iter()
        .position(|&rank| rank == first);
    let Some(color) = place else {
        return Err(DistError::config(
            format!(
                "group {} of ranks {:?} is no part of group {}",
                members.name(),
                members.ranks(),
                outer.members().name()
            ),
            "split the group that has all of these ranks",
        ));
    };
    // NCCL waits for members that do not split; here they differ, or come too late.
    let call = Call::new(
        Operation::Barrier,
        HostBuffer::from_values(Vec::<u8>::new()),
    );
    outer.run(call)?;
    let given_up = || inner.failure().is_some() || outer.failure().is_some();
    let patience = Patience {
        deadline: deadline(options.startup_timeout),
        given_up: &given_up,
    };
    let opened = whole.split((color, members.index()), patience);
    all_came(opened, inner, options)
}

/// This member's connection, if all members have theirs.
fn all_came(
    opened: std::result::Result<Connection, Fault>,
    inner: &dyn Communicator,
    options: &CommunicatorOptions,
) -> Result<Connection> {
    let members = inner.members();
    let came: Vec<usize> = all_gather(inner, vec![u8::from(opened.is_ok())])?
        .iter()
        .enumerate()
        .filter(|(_, came)| **came == [0])
        .map(|(index, _)| members.ranks()[index])
        .collect();
    match opened {
        Ok(connection) if came.is_empty() => Ok(connection),
        Ok(connection) => {
            connection.abort();
            Err(refuse(
                inner,
                format!("rank(s) {came:?} did not come to it"),
            ))
        }
        Err(fault) => Err(refuse(
            inner,
            match fault {
                Fault::Failed(_, text) => text,
                Fault::Late => format!(
                    "not all ranks came to it within {:?}",
                    options.startup_timeout
                ),
                Fault::GivenUp => "the group failed meanwhile".into(),
            },
        )),
    }
}

fn refuse(inner: &dyn Communicator, problem: String) -> DistError {
    let members = inner.members();
    DistError::Rendezvous {
        rank: members.rank(),
        address: format!(
            "NCCL for group {} of ranks {:?}",
            members.name(),
            members.ranks()
        ),
        problem,
        hint: "read the output of these ranks; NCCL_DEBUG=INFO makes NCCL say what it does".into(),
    }
}

/// Every member's bytes, as many of each.
fn all_gather(inner: &dyn Communicator, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>> {
    let count = bytes.len();
    let call = Call::new(Operation::AllGather, HostBuffer::from_values(bytes));
    let all = inner
        .run(call.labelled("what NCCL needs"))?
        .to_values::<u8>();
    Ok(all.chunks(count).map(<[u8]>::to_vec).collect())
}

/// Members have one version of NCCL and a device each.
fn compare(runtime: &NcclRuntime, inner: &dyn Communicator) -> Result<()> {
    let ranks = inner.members().ranks();
    let (major, minor, patch) = runtime.library().version();
    let uuid = runtime.context().uuid();
    let mut card = Vec::with_capacity(CARD);
    for part in [major, minor, patch] {
        card.extend(part.to_le_bytes());
    }
    card.extend(uuid.clone().unwrap_or_default());
    card.push(u8::from(uuid.is_ok()));
    let cards = all_gather(inner, card)?;
    if let Err(problem) = uuid {
        return Err(refuse(inner, problem));
    }
    let version = |card: &[u8]| {
        let part = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| card[at + i]));
        format!("{}.{}.{}", part(0), part(4), part(8))
    };
    for (index, card) in cards.iter().enumerate() {
        if card[CARD - 1] == 0 {
            let problem = format!("rank {} cannot tell its device", ranks[index]);
            return Err(refuse(inner, problem));
        }
        if version(card) != version(&cards[0]) {
            return Err(DistError::config(
                format!(
                    "rank {} has NCCL {}, but rank {} has {}",
                    ranks[0],
                    version(&cards[0]),
                    ranks[index],
                    version(card)
                ),
                "set BURN_DIST_NCCL_LIBRARY to the same version on every host",
            ));
        }
        let twin = cards[..index]
            .iter()
            .position(|other| other[12..28] == card[12..28]);
        if let Some(twin) = twin {
            return Err(DistError::config(
                format!("ranks {} and {} use one device", ranks[twin], ranks[index]),
                "give each rank a device of its own: `nccl: Some(local_rank)`, or fewer ranks per host",
            ));
        }
    }
    Ok(())
}

/// The first member makes the id up.
fn agree_on_id(runtime: &NcclRuntime, inner: &dyn Communicator) -> Result<UniqueId> {
    let mut id = UniqueId([0; UniqueId::BYTES]);
    let mut made = SUCCESS;
    let members = inner.members();
    let nccl = runtime.library().functions();
    if members.index() == 0 {
        // SAFETY: the result goes to a variable of that kind.
        made = unsafe { nccl.get_unique_id(&mut id) };
    }
    let mut bytes = id.0.to_vec();
    bytes.push(u8::from(made == SUCCESS));
    let call = Call::new(
        Operation::Broadcast { root: 0 },
        HostBuffer::from_values(bytes),
    );
    let bytes = inner.run(call.labelled("NCCL's id"))?.to_values::<u8>();
    if made != SUCCESS {
        return Err(refuse(inner, words(&**nccl, made, None)));
    }
    match bytes.split_first_chunk::<{ UniqueId::BYTES }>() {
        Some((id, [1])) => Ok(UniqueId(*id)),
        _ => {
            let problem = format!("rank {} could not make an id", members.ranks()[0]);
            Err(refuse(inner, problem))
        }
    }
}
