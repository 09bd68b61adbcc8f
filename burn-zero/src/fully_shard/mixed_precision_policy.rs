//! [`MixedPrecisionPolicy`]: element types of compute, sums and master weights.

use burn::tensor::DType;

/// In which element types a wrapped model computes, reduces and steps.
///
/// The default keeps a model's own types, with gradients of 16-bit parameters reduced in f32.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MixedPrecisionPolicy {
    /// Parameters as the model sees them, and as they travel; `None`: the model's own type.
    pub param: Option<DType>,
    /// Sums of gradients: f32 or f64; `None`: the parameter's own type, at least f32.
    pub reduce: Option<DType>,
    /// What each rank keeps of a parameter and the optimizer steps; `None`: f32 for 16-bit parameters,
    /// else the parameter's own type.
    pub master: Option<DType>,
}

impl MixedPrecisionPolicy {
    /// Computes in bf16; sums and master weights in f32.
    pub fn bf16() -> Self {
        Self {
            param: Some(DType::BF16),
            reduce: Some(DType::F32),
            master: Some(DType::F32),
        }
    }

    /// Computes in f16, which needs a [`LossScale`](crate::LossScale); sums and master weights in f32.
    pub fn f16() -> Self {
        Self {
            param: Some(DType::F16),
            ..Self::bf16()
        }
    }
}
