//! [`ReduceOp`]: how a reduction combines the ranks' elements.

use burn::tensor::DType;

/// How a reduction combines the elements that the ranks hold at the same place.
///
/// Sums run in rank order, `((x0 + x1) + x2) + ...`; 16-bit floats are combined in f32 and rounded
/// once at the end. `Mean` divides once, after the sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// Sum over ranks.
    Sum,
    /// Sum over ranks, divided by the number of ranks. Refused for integers and booleans.
    Mean,
    /// Largest element. For booleans: logical or.
    Max,
    /// Smallest element. For booleans: logical and.
    Min,
    /// Product over ranks.
    Product,
}

impl ReduceOp {
    /// The name that stands in errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Max => "max",
            Self::Min => "min",
            Self::Product => "product",
        }
    }

    /// Why this reduction is not defined for `dtype`, or `None` if it is.
    pub fn refusal(self, dtype: DType) -> Option<&'static str> {
        match (self, dtype) {
            (_, DType::QFloat(_)) => Some("quantised tensors cannot be reduced"),
            (Self::Mean, dtype) if !dtype.is_float() => {
                Some("the mean of integers or booleans is not an integer")
            }
            (Self::Sum | Self::Product, DType::Bool(_)) => {
                Some("booleans reduce by Max (or) and Min (and) only")
            }
            _ => None,
        }
    }
}
