//! Arrays of f16 to f32 and back, with the instructions that processors have for it.
#![allow(unsafe_code)]

use half::f16;
use half::slice::HalfFloatSliceExt;

/// Exact; both arrays have one length.
pub(super) fn widen(values: &[f16], wide: &mut [f32]) {
    assert_eq!(values.len(), wide.len(), "arrays of one length");
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("f16c") {
        // SAFETY: the processor has these instructions.
        return unsafe { x86::widen(values, wide) };
    }
    values.convert_to_f32_slice(wide);
}

/// Rounded to nearest, ties to even; both arrays have one length.
pub(super) fn narrow(wide: &[f32], values: &mut [f16]) {
    assert_eq!(values.len(), wide.len(), "arrays of one length");
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("f16c") {
        // SAFETY: the processor has these instructions.
        return unsafe { x86::narrow(wide, values) };
    }
    values.convert_from_f32_slice(wide);
}

/// In loops of their own: the library calls a function for every eight elements.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::*;

    #[target_feature(enable = "avx,f16c")]
    pub(super) fn widen(values: &[f16], wide: &mut [f32]) {
        let (rows, rest) = values.as_chunks::<8>();
        let (wide_rows, wide_rest) = wide.as_chunks_mut::<8>();
        for (row, wide) in rows.iter().zip(wide_rows) {
            // SAFETY: eight elements are read and eight written, as many as both rows have, aligned or not.
            unsafe {
                let row = _mm_loadu_si128(row.as_ptr().cast());
                _mm256_storeu_ps(wide.as_mut_ptr(), _mm256_cvtph_ps(row));
            }
        }
        rest.convert_to_f32_slice(wide_rest);
    }

    #[target_feature(enable = "avx,f16c")]
    pub(super) fn narrow(wide: &[f32], values: &mut [f16]) {
        let (rows, rest) = values.as_chunks_mut::<8>();
        let (wide_rows, wide_rest) = wide.as_chunks::<8>();
        for (row, wide) in rows.iter_mut().zip(wide_rows) {
            // SAFETY: eight elements are read and eight written, as many as both rows have, aligned or not.
            unsafe {
                let wide = _mm256_loadu_ps(wide.as_ptr());
                let narrow = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide);
                _mm_storeu_si128(row.as_mut_ptr().cast(), narrow);
            }
        }
        rest.convert_from_f32_slice(wide_rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_them_there_and_back() {
        let values: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        // Odd lengths have a rest.
        for len in [0, 1, 7, 8, 9, 65_535, 65_536] {
            let (values, mut wide) = (&values[..len], vec![1.0; len]);
            widen(values, &mut wide);
            let mut back = vec![f16::ONE; len];
            narrow(&wide, &mut back);
            for ((value, wide), back) in values.iter().zip(&wide).zip(&back) {
                let is_same = wide.to_bits() == value.to_f32().to_bits();
                assert!(is_same || wide.is_nan() && value.is_nan(), "{value:?}");
                let is_same = back.to_bits() == value.to_bits();
                assert!(is_same || back.is_nan() && value.is_nan(), "{value:?}");
            }
        }
    }

    #[test]
    fn what_lies_between_is_rounded_as_the_library_does() {
        let wide = (0..=u16::MAX).flat_map(|high| {
            [0u32, 1, 0x0fff, 0x1000, 0x1001, 0xffff]
                .map(|low| f32::from_bits(u32::from(high) << 16 | low))
        });
        let wide: Vec<f32> = wide.collect();
        let mut values = vec![f16::ONE; wide.len()];
        narrow(&wide, &mut values);
        for (value, wide) in values.iter().zip(&wide) {
            let right = f16::from_f32(*wide);
            let is_same = value.to_bits() == right.to_bits();
            assert!(is_same || value.is_nan() && right.is_nan(), "{wide:e}");
        }
    }
}
