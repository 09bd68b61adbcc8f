//! How near results are to the twin's.

use burn::tensor::{DType, Tensor};

/// What a result is compared with.
#[derive(Debug, Clone, Copy)]
pub(super) enum Bound {
    /// The same bits.
    Bits,
    /// The same numbers; zeros may have another sign.
    Equal,
    /// The same within 1e-5, relative to itself and to this size of what was added up.
    Near(f64),
}

/// What sums are made in.
pub(super) fn wide(dtype: DType) -> DType {
    super::super::kernel_twins::wide(dtype)
}

/// The distance between neighbours of this type around a value.
fn unit(dtype: DType, value: f64) -> f64 {
    let (digits, lowest) = match dtype {
        DType::F16 => (10, -24),
        DType::BF16 => (7, -133),
        _ => return 0.0,
    };
    let exponent = match value == 0.0 {
        true => lowest,
        false => value.abs().log2().floor() as i32 - digits,
    };
    2f64.powi(exponent.max(lowest))
}

/// Compares a result with the twin's, which was made in the wide type: with what that is rounded to.
///
/// # Panics
/// If shapes, types or numbers differ.
pub(super) fn assert_is<const D: usize>(
    got: Tensor<D>,
    right: Tensor<D>,
    dtype: DType,
    bound: Bound,
    what: &str,
) {
    assert_eq!(got.dtype(), dtype, "{what}");
    assert_eq!(got.dims(), right.dims(), "{what}");
    let rounded = right.into_data().convert_dtype(dtype);
    let got = got.into_data();
    for (i, (got, right)) in got.iter::<f64>().zip(rounded.iter::<f64>()).enumerate() {
        let is_right = match bound {
            Bound::Bits => got.to_bits() == right.to_bits(),
            _ if got == right => true,
            _ if right.is_nan() => got.is_nan(),
            Bound::Equal => false,
            Bound::Near(size) => {
                let unit = unit(dtype, got.abs().max(right.abs()));
                (got - right).abs() <= unit + 1e-5 * (right.abs() + size)
            }
        };
        assert!(is_right, "{what} at {i}: {got:e} is not {right:e}");
    }
}
