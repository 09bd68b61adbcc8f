//! [`Round`]: what ranks tell each other before each batch.

use crate::communicator::{HostBuffer, Operation};
use crate::error::Result;
use crate::group::ProcessGroup;

/// How a rank wants to go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wish {
    Continue,
    /// Somebody asked to stop, for this reason.
    Stop(String),
    /// Something failed.
    Fail(String),
}

impl Wish {
    fn code(&self) -> u64 {
        match self {
            Self::Continue => 0,
            Self::Stop(_) => 1,
            Self::Fail(_) => 2,
        }
    }
}

/// What a rank says.
#[derive(Debug)]
pub(super) struct Word {
    pub(super) has_batch: bool,
    /// Items of the batch before, whose output is sent along.
    pub(super) items: usize,
    /// The output of the batch before, if it is to be counted.
    pub(super) output: Option<Vec<u8>>,
    pub(super) wish: Wish,
}

/// What all ranks said.
#[derive(Debug)]
pub(super) struct Round {
    /// Ranks that have a batch.
    pub(super) active: usize,
    /// On the first rank: items and output of the batches before, in rank order.
    pub(super) outputs: Vec<(usize, Vec<u8>)>,
    /// What ranks do that wish for something else than to go on: of the first that failed, else of the first
    /// that stops.
    pub(super) end: Option<(usize, Wish)>,
}

/// Says a word and hears those of all ranks. Collective: a gather of four numbers, outputs sent to the
/// first rank, and texts if a rank does not go on.
///
/// # Errors
/// What the group met.
pub(super) fn meet(group: &ProcessGroup, word: Word) -> Result<Round> {
    // An output of no bytes counts too.
    let length = word
        .output
        .as_ref()
        .map_or(0, |bytes| bytes.len() as u64 + 1);
    let own = vec![
        u64::from(word.has_batch),
        word.items as u64,
        length,
        word.wish.code(),
    ];
    let all = group.all_gather_values(own)?;
    let mut outputs = Vec::new();
    for (rank, said) in all.iter().enumerate().filter(|(_, said)| said[2] > 0) {
        let length = said[2] as usize - 1;
        let here = group.index();
        let bytes = match (rank == here, here == 0) {
            (true, true) => word.output.clone().unwrap_or_default(),
            (true, false) => {
                let to = Operation::SendRecv {
                    to: Some(0),
                    from: None,
                    receive: vec![0],
                };
                let output = word.output.clone().unwrap_or_default();
                group.run(to, HostBuffer::from_values(output))?;
                continue;
            }
            (false, true) => {
                let from = Operation::SendRecv {
                    to: None,
                    from: Some(rank),
                    receive: vec![length],
                };
                let nothing = HostBuffer::from_values(Vec::<u8>::new());
                group.run(from, nothing)?.to_values()
            }
            (false, false) => continue,
        };
        outputs.push((said[1] as usize, bytes));
    }
    let end = match all.iter().any(|said| said[3] > 0) {
        true => Some(first_end(group, &all, &word.wish)?),
        false => None,
    };
    Ok(Round {
        active: all.iter().filter(|said| said[0] > 0).count(),
        outputs,
        end,
    })
}

fn first_end(group: &ProcessGroup, all: &[Vec<u64>], own: &Wish) -> Result<(usize, Wish)> {
    let text = match own {
        Wish::Continue => "",
        Wish::Stop(text) | Wish::Fail(text) => text,
    };
    let mut texts = group.all_gather_text(text)?;
    let of = |code: u64| all.iter().position(|said| said[3] == code);
    let failed = of(2).map(|rank| (rank, true));
    let (rank, failed) = failed
        .or_else(|| of(1).map(|rank| (rank, false)))
        .expect("invariant: a rank does not go on");
    let text = texts.swap_remove(rank);
    let wish = match failed {
        true => Wish::Fail(text),
        false => Wish::Stop(text),
    };
    Ok((group.ranks()[rank], wish))
}
