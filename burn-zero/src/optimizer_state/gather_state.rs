//! Records of all ranks on the first.

use burn::optim::OptimizerRecord;
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
        group.run(to, HostBuffer::from_values(own.to_vec()))?;
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
