//! This rank's pieces of the mean gradients.

use std::ops::Range;

use burn::tensor::DType;
use burn_dist::backend::LeafId;
use burn_dist::communicator::HostBuffer;

use super::gradient_sums::Means;
use super::shard_context::ShardContext;

/// The gradients of this rank's pieces by the leaves that hold them, in the type that each is kept in. A
/// parameter that no rank used has none.
pub(crate) fn gradient_shards(
    context: &ShardContext,
    means: &Means,
    leaf: impl Fn(usize) -> Option<LeafId>,
) -> Vec<(LeafId, HostBuffer)> {
    let index = context.groups.shard.index();
    let mut shards = Vec::new();
    for (unit, part) in means.parts.iter().enumerate() {
        let Some(part) = part else { continue };
        let pieces: Vec<(usize, Range<usize>)> = match context.plan.is_whole(unit) {
            true => {
                let numbers = context.plan.units[unit].parameters.iter();
                numbers
                    .map(|&number| (number, context.plan.parameters[number].place.clone()))
                    .collect()
            }
            false => {
                let pieces = context.plan.layout.pieces(unit, index).into_iter();
                let number = |piece: usize| context.plan.units[unit].parameters[piece];
                pieces
                    .map(|piece| (number(piece.parameter), piece.place))
                    .collect()
            }
        };
        for (number, place) in pieces {
            if let Some(leaf) = leaf(number).filter(|_| means.used[number]) {
                let master = context.plan.parameters[number].master;
                shards.push((leaf, excerpt(part, place, master)));
            }
        }
    }
    shards
}

/// Some elements of an array of f32 or f64, in another element type.
fn excerpt(part: &HostBuffer, place: Range<usize>, dtype: DType) -> HostBuffer {
    let size = part.dtype().size();
    let bytes = &part.bytes()[place.start * size..place.end * size];
    match (part.dtype(), dtype) {
        (DType::F32, DType::F64) => {
            let values: &[f32] = bytemuck::cast_slice(bytes);
            HostBuffer::from_values(values.iter().map(|&x| f64::from(x)).collect())
        }
        (DType::F64, DType::F32) => {
            let values: &[f64] = bytemuck::cast_slice(bytes);
            HostBuffer::from_values(values.iter().map(|&x| x as f32).collect())
        }
        (from, to) => {
            debug_assert_eq!(from, to, "invariant: masters are f32 or f64");
            let mut values = HostBuffer::zeros(from, vec![place.len()]);
            values.bytes_mut().copy_from_slice(bytes);
            values
        }
    }
}
