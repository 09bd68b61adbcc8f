//! This rank's pieces of the mean gradients.

use std::ops::Range;

use burn_dist::backend::FlatArray;

use super::gradient_sums::Means;
use super::shard_context::ShardContext;

/// The gradients of this rank's pieces by their parameters, in the type that each is kept in. A parameter that no rank
/// used has none.
pub(crate) fn gradient_pieces(context: &ShardContext, means: &Means) -> Vec<(usize, FlatArray)> {
    let index = context.groups.shard.index();
    let mut gradients = Vec::new();
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
        let used = pieces.into_iter().filter(|(number, _)| means.used[*number]);
        gradients.extend(used.map(|(number, place)| {
            let master = context.plan.parameters[number].master;
            (number, part.excerpt(place, master))
        }));
    }
    gradients
}
