//! [`Placement`]: whole, a part, or a summand.

use std::fmt;
use std::str::FromStr;

use crate::communicator::ReduceOp;
use crate::error::DistError;

/// What a rank of an axis holds of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// The whole array, equal on all ranks.
    Replicate,
    /// Part `i` of `n` equal parts along a dim, `i` being the rank's index on the axis.
    Shard(usize),
    /// An array of the whole's shape; the whole is the reduction over the axis.
    Partial(ReduceOp),
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replicate => f.write_str("replicate"),
            Self::Shard(dim) => write!(f, "shard({dim})"),
            Self::Partial(op) => write!(f, "partial({})", op.name()),
        }
    }
}

impl FromStr for Placement {
    type Err = DistError;

    fn from_str(text: &str) -> Result<Self, DistError> {
        let dim = text
            .strip_prefix("shard(")
            .and_then(|rest| rest.strip_suffix(')'))
            .and_then(|dim| dim.parse().ok());
        let operations = [
            ReduceOp::Sum,
            ReduceOp::Mean,
            ReduceOp::Max,
            ReduceOp::Min,
            ReduceOp::Product,
        ];
        let partial = operations.into_iter().map(Self::Partial);
        std::iter::once(Self::Replicate)
            .chain(dim.map(Self::Shard))
            .chain(partial)
            .find(|placement| placement.to_string() == text)
            .ok_or_else(|| {
                DistError::config(
                    format!("there is no placement {text:?}"),
                    "placements are replicate, shard(DIM) and partial(sum|mean|max|min|product)",
                )
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let all = [
            Placement::Replicate,
            Placement::Shard(0),
            Placement::Shard(12),
            Placement::Partial(ReduceOp::Sum),
            Placement::Partial(ReduceOp::Max),
        ];
        for placement in all {
            assert_eq!(placement.to_string().parse(), Ok(placement));
        }
        for text in ["", "shard", "shard()", "shard(-1)", "shard(+1)", "partial"] {
            assert!(text.parse::<Placement>().is_err(), "{text}");
        }
    }
}
