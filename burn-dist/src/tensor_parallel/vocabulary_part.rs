//! [`VocabularyPart`]: which rows of a vocabulary a rank holds.

/// Part `index` of `parts` equal parts of a vocabulary, padded at its end so that they are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VocabularyPart {
    /// The first token.
    pub start: usize,
    /// Rows, padding included; the same on every rank.
    pub rows: usize,
    /// Rows that are tokens.
    pub tokens: usize,
}

impl VocabularyPart {
    /// Of `vocabulary` tokens.
    pub fn new(vocabulary: usize, index: usize, parts: usize) -> Self {
        let rows = vocabulary.div_ceil(parts);
        let start = (index * rows).min(vocabulary);
        Self {
            start,
            rows,
            tokens: (vocabulary - start).min(rows),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_held_once() {
        for vocabulary in 0..20 {
            for parts in 1..6 {
                let all: Vec<_> = (0..parts)
                    .map(|index| VocabularyPart::new(vocabulary, index, parts))
                    .collect();
                let held: Vec<usize> = all
                    .iter()
                    .flat_map(|part| part.start..part.start + part.tokens)
                    .collect();
                assert_eq!(held, (0..vocabulary).collect::<Vec<_>>());
                assert!(all.iter().all(|part| part.rows == all[0].rows));
            }
        }
    }
}
