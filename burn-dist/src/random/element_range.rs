//! [`ElementRange`]: which elements of a whole array a rank holds.

use std::ops::Range;

/// Part `index` of `parts` equal parts of an array along `dim`; the whole is one part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ElementRange {
    /// The dim that is split.
    pub dim: usize,
    /// Which part.
    pub index: usize,
    /// How many parts.
    pub parts: usize,
}

impl ElementRange {
    /// Everything.
    pub const WHOLE: Self = Self {
        dim: 0,
        index: 0,
        parts: 1,
    };

    /// Runs of elements, row-major in the whole array, of a part of shape `shape`, in order.
    pub fn runs(self, shape: &[usize]) -> impl Iterator<Item = Range<u64>> {
        // The last dim that is cut and all after it are contiguous.
        let cut = if self.parts == 1 { 0 } else { self.dim };
        let before: usize = shape[..cut].iter().product();
        let run: usize = shape[cut..].iter().product();
        (0..before).filter(move |_| run > 0).map(move |outer| {
            let start = ((outer * self.parts + self.index) * run) as u64;
            start..start + run as u64
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_whole_once() {
        for (shape, dim) in [
            ([2, 3, 4], 0),
            ([2, 3, 4], 1),
            ([2, 3, 4], 2),
            ([0, 3, 4], 1),
        ] {
            let parts = 3;
            let mut whole = shape.to_vec();
            whole[dim] *= parts;
            let all = (0..parts).flat_map(|index| ElementRange { dim, index, parts }.runs(&shape));
            let mut elements: Vec<u64> = all.flatten().collect();
            elements.sort_unstable();
            let expected: Vec<u64> = (0..whole.iter().product::<usize>() as u64).collect();
            assert_eq!(elements, expected, "{shape:?} along {dim}");
        }
        let whole: Vec<_> = ElementRange::WHOLE.runs(&[2, 3]).collect();
        assert_eq!(whole, [0..6]);
    }
}
