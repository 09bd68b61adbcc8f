//! From all ranks' parts to the whole state, and back.

use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::tensor::{Bytes, DType};
use burn_dist::communicator::{HostBuffer, Operation};
use burn_dist::{DistError, ProcessGroup, Result};

use super::StateMap;

/// The whole record on the group's first rank, `None` on others. Collective: each rank sends its part to the
/// first.
pub(crate) fn gather_state(
    own: OptimizerRecord,
    map: &StateMap,
    group: &ProcessGroup,
) -> Result<Option<OptimizerRecord>> {
    let own = own.into_bytes().map_err(|error| {
        DistError::config(
            format!("rank {}: an optimizer's state: {error}", group.rank()),
            "see the message of Burn's record",
        )
    })?;
    let own = map.numbered(own, group.index())?;
    let lengths = group.all_gather_values(vec![own.len() as u64])?;
    if group.index() > 0 {
        let to = Operation::SendRecv {
            to: Some(0),
            from: None,
            receive: vec![0],
        };
        let length = own.len();
        group.run(to, HostBuffer::new(own, DType::U8, vec![length]))?;
        return Ok(None);
    }
    let mut records = vec![own];
    for (index, length) in lengths.iter().enumerate().skip(1) {
        let from = Operation::SendRecv {
            to: None,
            from: Some(index),
            receive: vec![length[0] as usize],
        };
        let nothing = HostBuffer::from_values(Vec::<u8>::new());
        let (bytes, ..) = group.run(from, nothing)?.into_parts();
        records.push(bytes);
    }
    map.join(records).map(Some)
}

/// The optimizer with its part of a whole record. Local.
pub(crate) fn cut_state(
    optimizer: ModuleOptimizer,
    whole: Bytes,
    map: &StateMap,
    group: &ProcessGroup,
) -> Result<ModuleOptimizer> {
    let own = map.cut(whole, group.index())?;
    let (expected, optimizer) = (own.len(), optimizer.load_record(own));
    // One that does not know a state passes over it in silence.
    let got = optimizer.to_record().len();
    match got == expected {
        true => Ok(optimizer),
        false => Err(DistError::config(
            format!(
                "rank {}: the state has {expected} tensors for this optimizer, which took {got}",
                group.rank()
            ),
            "load the state of the same kind of optimizer",
        )),
    }
}
