//! [`KernelFloat`]: what kernels compute on.

use half::{bf16, f16};

/// A float that is stored, and the one that it is computed in: 16 bits in 32.
pub trait KernelFloat: Copy + Send + Sync + 'static {
    /// What sums and products are made in.
    type Wide: WideFloat;

    /// Exact.
    fn widen(self) -> Self::Wide;

    /// Rounded to nearest, ties to even.
    fn narrow(wide: Self::Wide) -> Self;
}

/// A float with the operations of kernels.
pub trait WideFloat:
    Copy
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

    /// The nearest one.
    fn from_f64(value: f64) -> Self;

    /// Exact.
    fn to_f64(self) -> f64;
}

macro_rules! wide {
    ($float:ty) => {
        impl WideFloat for $float {
            fn sqrt(self) -> Self {
                self.sqrt()
            }

            fn from_f64(value: f64) -> Self {
                value as Self
            }

            fn to_f64(self) -> f64 {
                f64::from(self)
            }
        }

        impl KernelFloat for $float {
            type Wide = Self;

            fn widen(self) -> Self {
                self
            }

            fn narrow(wide: Self) -> Self {
                wide
            }
        }
    };
}

wide!(f32);
wide!(f64);

macro_rules! narrow {
    ($float:ty) => {
        impl KernelFloat for $float {
            type Wide = f32;

            fn widen(self) -> f32 {
                self.to_f32()
            }

            fn narrow(wide: f32) -> Self {
                Self::from_f32(wide)
            }
        }
    };
}

narrow!(f16);
narrow!(bf16);
