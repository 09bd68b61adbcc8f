//! What members must agree about before data moves.

use super::Members;
use super::execute::Outcome;
use super::failed::FaultOrError;
use super::header::Header;
use super::transport::Fault;
use crate::error::DistError;

/// The shape of the array that the root of a scatter deals out to `n` members, if there can be one.
pub(super) fn dealt_out(header: &Header<'_>, n: usize) -> Option<Vec<usize>> {
    // The longest element has eight bytes.
    let most = isize::MAX as u64 / 8;
    let mut elements = 1u64;
    for dim in header.shape.iter() {
        elements = elements.checked_mul(dim).filter(|&count| count <= most)?;
    }
    let rows = header.shape.iter().next()?;
    let shape = header.shape.iter().map(usize::try_from);
    let shape: Vec<usize> = shape.collect::<std::result::Result<_, _>>().ok()?;
    rows.is_multiple_of(n as u64).then_some(shape)
}

/// The header of member `other`, if it fits this member's own.
pub(super) fn compare<'a>(
    members: &Members,
    mine: &Header<'_>,
    other: usize,
    bytes: &'a [u8],
) -> Outcome<Header<'a>> {
    let Some(theirs) = Header::decode(bytes) else {
        return Err(FaultOrError::Fault(Fault::Garbled {
            index: other,
            detail: "a header that cannot be read".into(),
        }));
    };
    if !mine.agrees(members.index(), &theirs, other) {
        let mismatch = DistError::Mismatch {
            rank: members.rank(),
            group: members.name().into(),
            sequence: mine.sequence,
            differing: members.ranks()[other],
            expected: mine.describe(),
            got: theirs.describe(),
        };
        return Err(FaultOrError::Error(Box::new(mismatch)));
    }
    Ok(theirs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::Operation;
    use crate::communicator::header::encode;
    use burn::tensor::DType;

    #[test]
    fn a_root_cannot_deal_out_what_nobody_has() {
        let dealt_out = |shape: &[usize]| {
            let mut bytes = Vec::new();
            encode(
                0,
                &Operation::Scatter { root: 0 },
                DType::F32,
                shape,
                None,
                &mut bytes,
            );
            dealt_out(&Header::decode(&bytes).expect("a header"), 3)
        };
        assert_eq!(dealt_out(&[6, 2]), Some(vec![6, 2]));
        assert_eq!(dealt_out(&[0, 5]), Some(vec![0, 5]));
        for shape in [
            &[][..],
            &[4, 2],
            &[3, usize::MAX],
            &[1 << 62, 3],
            &[usize::MAX],
        ] {
            assert_eq!(dealt_out(shape), None, "{shape:?}");
        }
    }
}
