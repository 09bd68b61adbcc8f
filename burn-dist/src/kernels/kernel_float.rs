//! [`KernelFloat`]: what kernels compute on.

use half::{bf16, f16};

use super::f16_arrays;

/// A float that is stored, and the one that it is computed in: 16 bits in 32.
pub trait KernelFloat: Copy + Send + Sync + 'static {
    /// What sums and products are made in.
    type Wide: WideFloat;

    /// Exact.
    fn widen(self) -> Self::Wide;

    /// Rounded to nearest, ties to even.
    fn narrow(wide: Self::Wide) -> Self;

    /// Whether [`widen_all`](Self::widen_all) and [`narrow_all`](Self::narrow_all) are faster than number by number: processors have instructions that the compiler
    /// does not make of a loop.
    const HAS_INSTRUCTIONS: bool = false;

    /// The same array, if this is a wide type.
    fn as_wide(_values: &[Self]) -> Option<&[Self::Wide]> {
        None
    }

    /// The same array, if this is a wide type.
    fn as_wide_mut(_values: &mut [Self]) -> Option<&mut [Self::Wide]> {
        None
    }

    /// [`widen`](Self::widen) for arrays of one length.
    fn widen_all(values: &[Self], wide: &mut [Self::Wide]) {
        for (wide, value) in wide.iter_mut().zip(values) {
            *wide = value.widen();
        }
    }

    /// [`narrow`](Self::narrow) for arrays of one length.
    fn narrow_all(wide: &[Self::Wide], values: &mut [Self]) {
        for (value, wide) in values.iter_mut().zip(wide) {
            *value = Self::narrow(*wide);
        }
    }
}

/// A float with the operations of kernels.
pub trait WideFloat:
    KernelFloat<Wide = Self>
    + Copy
    + Send
    + Sync
    + PartialOrd
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + 'static
{
    /// The square root, rounded once.
    fn sqrt(self) -> Self;

    /// e to this power, within two units in the last place; below -86.6 it is 0 in 32 bits.
    fn exp(self) -> Self;

    /// The natural logarithm.
    fn ln(self) -> Self;

    /// The nearest one.
    fn from_f64(value: f64) -> Self;

    /// Exact.
    fn to_f64(self) -> f64;
}

/// Four operations per term, all of which the compiler can do on several numbers at once. (The polynomial is
/// that of Cephes' expf, S. L. Moshier, 1989.)
#[inline(always)]
fn exp_f32(x: f32) -> f32 {
    // Adding it leaves the nearest integer in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    const SMALLEST: f32 = -86.6;
    const LARGEST: f32 = 88.7;
    let inside = if x > LARGEST { LARGEST } else { x };
    let inside = if inside < SMALLEST { SMALLEST } else { inside };
    let n = (inside * std::f32::consts::LOG2_E + ROUND) - ROUND;
    // ln 2 in two parts: the first one times an integer is exact.
    let r = inside - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    for term in [
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.5,
    ] {
        p = p * r + term;
    }
    let p = p * (r * r) + r + 1.0;
    // Half of the power of two: the whole of it may be just too large.
    let half = f32::from_bits(((n as i32 + 126) << 23) as u32);
    let y = p * half * 2.0;
    let y = if x < SMALLEST { 0.0 } else { y };
    let y = if x > LARGEST { f32::INFINITY } else { y };
    // What is no number stays so.
    if x.is_nan() { x } else { y }
}

macro_rules! wide {
    ($float:ty, $exp:expr) => {
        impl WideFloat for $float {
            #[inline(always)]
            fn sqrt(self) -> Self {
                self.sqrt()
            }

            #[inline(always)]
            fn exp(self) -> Self {
                $exp(self)
            }

            fn ln(self) -> Self {
                self.ln()
            }

            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as Self
            }

            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
        }

        impl KernelFloat for $float {
            type Wide = Self;

            #[inline(always)]
            fn widen(self) -> Self {
                self
            }

            #[inline(always)]
            fn narrow(wide: Self) -> Self {
                wide
            }

            fn as_wide(values: &[Self]) -> Option<&[Self]> {
                Some(values)
            }

            fn as_wide_mut(values: &mut [Self]) -> Option<&mut [Self]> {
                Some(values)
            }
        }
    };
}

wide!(f32, exp_f32);
wide!(f64, f64::exp);

impl KernelFloat for f16 {
    type Wide = f32;

    fn widen(self) -> f32 {
        self.to_f32()
    }

    fn narrow(wide: f32) -> Self {
        Self::from_f32(wide)
    }

    const HAS_INSTRUCTIONS: bool = true;

    fn widen_all(values: &[Self], wide: &mut [f32]) {
        f16_arrays::widen(values, wide);
    }

    fn narrow_all(wide: &[f32], values: &mut [Self]) {
        f16_arrays::narrow(wide, values);
    }
}

impl KernelFloat for bf16 {
    type Wide = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    /// Without branches, so that the compiler may take several at once.
    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        let bits = wide.to_bits();
        let half = 0x7fff + (bits >> 16 & 1);
        // A NaN whose upper bits are 0 would become infinite.
        let quiet = bits | 0x40_0000;
        let rounded = if wide.is_nan() {
            quiet
        } else {
            bits.wrapping_add(half)
        };
        Self::from_bits((rounded >> 16) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_within_two_units_in_the_last_place() {
        let mut worst = 0.0f64;
        for i in -866_000..=887_000 {
            let x = i as f32 / 10_000.0;
            let (got, right) = (f64::from(exp_f32(x)), f64::from(x).exp());
            worst = worst.max((got - right).abs() / right);
        }
        assert!(worst < 2.0 * f64::from(f32::EPSILON), "{worst}");
        assert_eq!([exp_f32(0.0), exp_f32(-0.0)], [1.0; 2]);
        for x in [f32::NEG_INFINITY, f32::MIN, -1000.0, -88.0] {
            assert_eq!(exp_f32(x), 0.0, "{x}");
        }
        for x in [89.0, 1e9, f32::INFINITY] {
            assert_eq!(exp_f32(x), f32::INFINITY, "{x}");
        }
        assert!(exp_f32(f32::NAN).is_nan());
    }

    #[test]
    fn sixteen_bits_are_those_of_the_library() {
        for high in 0..=u16::MAX {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits(u32::from(high) << 16 | low);
                let (got, right) = (<bf16 as KernelFloat>::narrow(value), bf16::from_f32(value));
                assert_eq!(got.to_bits(), right.to_bits(), "{value:?}");
                assert_eq!(got.widen().to_bits(), right.to_f32().to_bits());
            }
        }
    }
}
