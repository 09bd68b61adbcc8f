//! [`validate`]: what a rank can see to be wrong on its own.

use burn::tensor::DType;

use super::{Call, Members, Operation, ReduceOp};
use crate::error::{DistError, Result};

/// Refuses what this rank can see to be wrong on its own, before anything is sent.
pub(super) fn validate(call: &Call, members: &Members) -> Result<()> {
    let input = &call.input;
    validate_parts(&call.operation, input.shape(), input.dtype(), members)
}

/// As [`validate`], for an input that need not be in host memory.
pub(super) fn validate_parts(
    operation: &Operation,
    shape: &[usize],
    dtype: DType,
    members: &Members,
) -> Result<()> {
    let n = members.size();
    let refuse = |problem: String, hint: &str| {
        Err(DistError::InvalidCall {
            rank: members.rank(),
            group: members.name().into(),
            operation: operation.name().into(),
            problem,
            hint: hint.into(),
        })
    };
    let index = |what: &str, index: usize| match index < n {
        true => Ok(()),
        false => refuse(
            format!("{what} is index {index}, but the group has {n} ranks"),
            "an index counts from 0 inside the group",
        ),
    };
    let divisible = || match shape.first() {
        Some(first) if first.is_multiple_of(n) => Ok(()),
        _ => refuse(
            format!("the first dim of shape {shape:?} is not a multiple of the group's {n} ranks"),
            "pad it first",
        ),
    };
    if matches!(dtype, DType::QFloat(_)) {
        return refuse(
            "quantised tensors do not travel".into(),
            "dequantise them first",
        );
    }
    match operation {
        Operation::AllReduce(op) => reducible(*op, dtype).map_or(Ok(()), |r| {
            refuse(
                format!("{op:?} of {}: {r}", dtype.name()),
                "use another reduction",
            )
        }),
        Operation::ReduceScatter(op) => match reducible(*op, dtype) {
            Some(r) => refuse(
                format!("{op:?} of {}: {r}", dtype.name()),
                "use another reduction",
            ),
            None => divisible(),
        },
        Operation::AllGather if shape.is_empty() => refuse(
            "a scalar has no dim to join along".into(),
            "give it one dim",
        ),
        Operation::Gather { .. } if shape.is_empty() => refuse(
            "a scalar has no dim to join along".into(),
            "give it one dim",
        ),
        Operation::AllGather | Operation::Barrier => Ok(()),
        Operation::Broadcast { root } | Operation::Gather { root } => index("the root", *root),
        Operation::Scatter { root } => {
            index("the root", *root)?;
            match members.index() == *root {
                true => divisible(),
                false if shape.contains(&0) => Ok(()),
                false => refuse(
                    format!("an input of shape {shape:?} on a rank that is not the root"),
                    "give an empty one there",
                ),
            }
        }
        Operation::AllToAll { .. } if shape.is_empty() => {
            refuse("a scalar has no dim to deal out".into(), "give it one dim")
        }
        Operation::AllToAll {
            send_counts,
            recv_counts,
        } => {
            let rows = shape[0];
            let sum = |counts: &[usize]| {
                let mut counts = counts.iter();
                counts.try_fold(0usize, |sum, &count| sum.checked_add(count))
            };
            let total = sum(send_counts);
            let own = members.index();
            if send_counts.len() != n || recv_counts.len() != n || total != Some(rows) {
                return refuse(
                    format!(
                        "{rows} rows with send counts {send_counts:?} and receive counts {recv_counts:?} among {n} ranks"
                    ),
                    "give one count per member; the send counts add up to the rows",
                );
            }
            let width = shape[1..].iter().product::<usize>();
            if !sum(recv_counts).is_some_and(|rows| fits_memory(rows, width, dtype)) {
                return refuse(
                    format!("receive counts {recv_counts:?} of rows of {width} elements"),
                    "no memory holds so many",
                );
            }
            if send_counts[own] != recv_counts[own] {
                return refuse(
                    format!(
                        "{} rows to itself, but {} from itself",
                        send_counts[own], recv_counts[own]
                    ),
                    "a rank's own two counts are equal",
                );
            }
            Ok(())
        }
        Operation::SendRecv { to, from, receive } => {
            to.map_or(Ok(()), |to| index("the receiver", to))?;
            from.map_or(Ok(()), |from| index("the sender", from))?;
            let own = Some(members.index());
            if (*to == own || *from == own) && !(to == from && shape == receive.as_slice()) {
                return refuse(
                    format!("to {to:?} and from {from:?} with shapes {shape:?} and {receive:?}"),
                    "what a rank sends to itself it also receives",
                );
            }
            Ok(())
        }
    }
}

/// Whether an array of so many rows can be in memory at all.
fn fits_memory(rows: usize, width: usize, dtype: DType) -> bool {
    let elements = rows.checked_mul(width);
    let bytes = elements.and_then(|elements| elements.checked_mul(dtype.size()));
    // What no machine of today holds; a smaller array that this one lacks the memory for is the
    // system's to refuse.
    bytes.is_some_and(|bytes| bytes <= 1 << 44)
}

fn reducible(op: ReduceOp, dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::Bool(store) if DType::Bool(store).size() != 1 => {
            Some("booleans reduce as bytes only")
        }
        _ => op.refusal(dtype),
    }
}
