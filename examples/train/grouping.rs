//! [`Grouping`]: in which order one rank sums what many would.

use std::str::FromStr;

/// The ranks of a hybrid: replicas, and ranks in each. Plain data parallelism is one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grouping {
    /// R: sums over replicas come last.
    pub replicas: usize,
    /// S: ranks in each.
    pub shards: usize,
}

impl Grouping {
    /// R times S.
    pub fn ranks(&self) -> usize {
        self.replicas.saturating_mul(self.shards)
    }
}

impl FromStr for Grouping {
    type Err = String;

    /// `N`, or `RxS`.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let number = text.parse::<usize>();
            number.map_err(|_| format!("{text:?} is neither N nor RxS"))
        };
        let (replicas, shards) = match text.split_once('x') {
            Some((replicas, shards)) => (number(replicas)?, number(shards)?),
            None => (1, number(text)?),
        };
        Ok(Self { replicas, shards })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_products() {
        let grouping = |replicas, shards| Ok(Grouping { replicas, shards });
        assert_eq!("4".parse(), grouping(1, 4));
        assert_eq!("2x3".parse(), grouping(2, 3));
        for text in ["", "x", "2x", "two", "-1", "2x2x2"] {
            assert!(text.parse::<Grouping>().is_err(), "{text}");
        }
    }
}
