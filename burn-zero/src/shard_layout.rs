//! [`ShardLayout`]: which rank holds which elements of which parameter. Pure.

use std::fmt;
use std::ops::Range;

/// A stretch of a parameter that one rank holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardPiece {
    /// The parameter's number.
    pub parameter: usize,
    /// Which of its elements, row-major.
    pub elements: Range<usize>,
    /// The unit that it travels in.
    pub unit: usize,
    /// Where it lies in the rank's part of the unit.
    pub place: Range<usize>,
}

/// Parameters laid end to end in units, each unit cut into one equal part per rank.
///
/// A unit is what travels in one collective. Its elements are those of its parameters in their order;
/// rank `r` of `n` holds elements `r*k..(r+1)*k`, `k` being the length divided by `n`, rounded up; the
/// last elements are padding. Parameters may be empty, and smaller than the number of ranks.
///
/// Prints as a map, one line per unit: `|` between ranks, a letter per stretch of a parameter, `.` for
/// padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardLayout {
    ranks: usize,
    /// Parameters and their lengths, by unit.
    units: Vec<Vec<(usize, usize)>>,
}

impl ShardLayout {
    /// Units of parameters, given as number and length, over `ranks > 0` ranks.
    pub fn new(units: Vec<Vec<(usize, usize)>>, ranks: usize) -> Self {
        Self { ranks, units }
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Number of units.
    pub fn num_units(&self) -> usize {
        self.units.len()
    }

    /// Elements of a unit without padding.
    pub fn unit_len(&self, unit: usize) -> usize {
        self.units[unit].iter().map(|(_, len)| len).sum()
    }

    /// Elements of each rank's part of a unit, padding included.
    pub fn part_len(&self, unit: usize) -> usize {
        self.unit_len(unit).div_ceil(self.ranks)
    }

    /// Elements that are only there to make parts equal, over all units and ranks.
    pub fn padding(&self) -> usize {
        let unit = |u| self.part_len(u) * self.ranks - self.unit_len(u);
        (0..self.units.len()).map(unit).sum()
    }

    /// Elements that each rank holds, padding included: the same on all.
    pub fn held_by_each(&self) -> usize {
        (0..self.units.len()).map(|unit| self.part_len(unit)).sum()
    }

    /// Parameters of a unit and where they lie in it.
    pub fn places(&self, unit: usize) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        self.units[unit].iter().scan(0, |next, &(parameter, len)| {
            let start = *next;
            *next += len;
            Some((parameter, start..start + len))
        })
    }

    /// For each parameter of a unit, the elements that each rank holds, by rank; empty where it has none.
    pub fn elements(&self, unit: usize) -> Vec<(usize, Vec<Range<usize>>)> {
        let ranks = 0..self.ranks;
        let held: Vec<Vec<ShardPiece>> = ranks.map(|rank| self.pieces(unit, rank)).collect();
        let of = |parameter: usize, pieces: &Vec<ShardPiece>| {
            let mut pieces = pieces.iter();
            let own = pieces.find(|piece| piece.parameter == parameter);
            own.map_or(0..0, |piece| piece.elements.clone())
        };
        self.places(unit)
            .map(|(parameter, _)| {
                let elements = held.iter().map(|pieces| of(parameter, pieces));
                (parameter, elements.collect())
            })
            .collect()
    }

    /// The stretches that a rank holds of a unit, in their order; none of them is empty.
    pub fn pieces(&self, unit: usize, rank: usize) -> Vec<ShardPiece> {
        let part = self.part_len(unit);
        let own = rank * part..(rank + 1) * part;
        self.places(unit)
            .filter_map(|(parameter, place)| {
                let start = place.start.max(own.start);
                let end = place.end.min(own.end);
                (start < end).then(|| ShardPiece {
                    parameter,
                    elements: start - place.start..end - place.start,
                    unit,
                    place: start - own.start..end - own.start,
                })
            })
            .collect()
    }
}

impl fmt::Display for ShardLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Widest map of a rank's part.
        const COLUMNS: usize = 24;
        let letter = |parameter: usize| char::from(b'a' + (parameter % 26) as u8);
        for unit in 0..self.units.len() {
            write!(f, "unit {unit}: |")?;
            let part = self.part_len(unit);
            for rank in 0..self.ranks {
                let pieces = self.pieces(unit, rank);
                let columns = part.min(COLUMNS);
                for column in 0..columns {
                    let element = column * part / columns;
                    let piece = pieces.iter().find(|piece| piece.place.contains(&element));
                    write!(f, "{}", piece.map_or('.', |piece| letter(piece.parameter)))?;
                }
                write!(f, "|")?;
            }
            writeln!(
                f,
                " {} elements, {} per rank",
                self.unit_len(unit),
                self.part_len(unit)
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_layout_prints_as_a_map() {
        // Parameters of 1 and of 3 elements on 4 ranks, and one of 6 that shares a rank's part.
        let layout = ShardLayout::new(vec![vec![(1, 3), (0, 1)], vec![(2, 6)]], 4);
        let map = layout.to_string();
        assert_eq!(
            map,
            "unit 0: |b|b|b|a| 4 elements, 1 per rank\nunit 1: |cc|cc|cc|..| 6 elements, 2 per rank\n"
        );
        assert_eq!((layout.padding(), layout.held_by_each()), (2, 3));
        let piece = &layout.pieces(1, 2)[0];
        assert_eq!((piece.elements.clone(), piece.place.clone()), (4..6, 0..2));
        assert!(layout.pieces(1, 3).is_empty());
    }

    proptest! {
        #[test]
        fn every_element_is_held_once_and_parts_are_equal(
            lens in prop::collection::vec(prop::collection::vec(0usize..50, 0..6), 0..5),
            ranks in 1usize..9,
        ) {
            let mut number = 0;
            let units: Vec<Vec<(usize, usize)>> = lens
                .iter()
                .map(|lens| {
                    let numbered = lens.iter().map(|&len| {
                        number += 1;
                        (number - 1, len)
                    });
                    numbered.collect()
                })
                .collect();
            let layout = ShardLayout::new(units.clone(), ranks);
            let mut held = vec![Vec::new(); number];
            for unit in 0..units.len() {
                prop_assert!(layout.part_len(unit) * ranks - layout.unit_len(unit) < ranks);
                for rank in 0..ranks {
                    for piece in layout.pieces(unit, rank) {
                        prop_assert_eq!(piece.elements.len(), piece.place.len());
                        prop_assert!(piece.place.end <= layout.part_len(unit));
                        held[piece.parameter].extend(piece.elements);
                    }
                }
            }
            for (parameter, len) in units.into_iter().flatten() {
                prop_assert!(held[parameter].iter().copied().eq(0..len), "{parameter}");
            }
        }
    }
}
