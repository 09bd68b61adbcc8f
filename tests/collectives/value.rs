//! Element types and the fixed inputs that the tests send: small enough that every reduction over
//! five ranks is exact in every type.

use std::fmt::Debug;

use burn::tensor::{bf16, f16};
use burn_dist::communicator::{HostBuffer, ReduceOp};

/// An element type that can be reduced.
pub(crate) trait Value: Copy + Debug + PartialEq + Send + Sync + 'static {
    /// Whether it has negative values.
    const SIGNED: bool;
    /// A small whole number.
    fn whole(number: i64) -> Self;
    /// The value as a number.
    fn number(self) -> f64;
    /// `sum / n` as this type divides, or nothing if it has no mean.
    fn divided(sum: f64, n: usize) -> Option<Self>;
    /// A buffer `[values.len()]`.
    fn buffer(values: Vec<Self>) -> HostBuffer;
    /// The values of a buffer.
    fn values(buffer: &HostBuffer) -> Vec<Self>;
}

macro_rules! value {
    ($type:ty, $signed:expr, $whole:expr, $number:expr, $divided:expr) => {
        impl Value for $type {
            const SIGNED: bool = $signed;
            fn whole(number: i64) -> Self {
                $whole(number)
            }
            fn number(self) -> f64 {
                $number(self)
            }
            fn divided(sum: f64, n: usize) -> Option<Self> {
                $divided(sum, n)
            }
            fn buffer(values: Vec<Self>) -> HostBuffer {
                HostBuffer::from_values(values)
            }
            fn values(buffer: &HostBuffer) -> Vec<Self> {
                buffer.to_values()
            }
        }
    };
}

macro_rules! integer {
    ($type:ty, $signed:expr) => {
        value!(
            $type,
            $signed,
            |x: i64| <$type>::try_from(x).expect("a small number"),
            |x: $type| x as f64,
            |_, _| None
        );
    };
}

integer!(i8, true);
integer!(i16, true);
integer!(i32, true);
integer!(i64, true);
integer!(u8, false);
integer!(u16, false);
integer!(u32, false);
integer!(u64, false);
value!(
    f32,
    true,
    |x: i64| x as f32,
    f64::from,
    |sum: f64, n: usize| Some(sum as f32 / n as f32)
);
value!(
    f64,
    true,
    |x: i64| x as f64,
    |x: f64| x,
    |sum: f64, n: usize| Some(sum / n as f64)
);
value!(
    f16,
    true,
    |x: i64| f16::from_f32(x as f32),
    f16::to_f64,
    |sum: f64, n: usize| Some(f16::from_f32(sum as f32 / n as f32))
);
value!(
    bf16,
    true,
    |x: i64| bf16::from_f32(x as f32),
    bf16::to_f64,
    |sum: f64, n: usize| Some(bf16::from_f32(sum as f32 / n as f32))
);

/// Calls `$check::<T>($args)` for every [`Value`].
macro_rules! for_every_type {
    ($check:ident($($argument:expr),*)) => {
        $check::<f32>($($argument),*);
        $check::<f64>($($argument),*);
        $check::<burn::tensor::f16>($($argument),*);
        $check::<burn::tensor::bf16>($($argument),*);
        $check::<i8>($($argument),*);
        $check::<i16>($($argument),*);
        $check::<i32>($($argument),*);
        $check::<i64>($($argument),*);
        $check::<u8>($($argument),*);
        $check::<u16>($($argument),*);
        $check::<u32>($($argument),*);
        $check::<u64>($($argument),*);
    };
}
pub(crate) use for_every_type;

/// What `rank` holds: whole numbers below 11, half of them negative where there are such.
pub(crate) fn input<T: Value>(rank: usize, len: usize) -> Vec<T> {
    let lowest = if T::SIGNED { -5 } else { 0 };
    (0..len)
        .map(|i| T::whole(((rank * 7 + i * 5 + 3) % 11) as i64 + lowest))
        .collect()
}

/// What `rank` multiplies: ones and twos, some negative where there are such.
fn factors<T: Value>(rank: usize, len: usize) -> Vec<T> {
    (0..len)
        .map(|i| {
            let negative = T::SIGNED && (rank + i).is_multiple_of(3);
            let size = 1 + ((rank + i) % 2) as i64;
            T::whole(if negative { -size } else { size })
        })
        .collect()
}

/// The input of `rank` to a reduction.
pub(crate) fn operand<T: Value>(op: ReduceOp, rank: usize, len: usize) -> Vec<T> {
    match op {
        ReduceOp::Product => factors(rank, len),
        _ => input(rank, len),
    }
}

/// The reduction of all [`operand`]s, or nothing if it is not defined for the type.
pub(crate) fn reduced<T: Value>(op: ReduceOp, n: usize, len: usize) -> Option<Vec<T>> {
    let operands: Vec<Vec<T>> = (0..n).map(|rank| operand(op, rank, len)).collect();
    (0..len)
        .map(|i| {
            let column = operands.iter().map(|values| values[i].number());
            let whole = |x: f64| Some(T::whole(x as i64));
            match op {
                ReduceOp::Sum => whole(column.sum()),
                ReduceOp::Mean => T::divided(column.sum(), n),
                ReduceOp::Max => whole(column.fold(f64::MIN, f64::max)),
                ReduceOp::Min => whole(column.fold(f64::MAX, f64::min)),
                ReduceOp::Product => whole(column.product()),
            }
        })
        .collect()
}

/// Pseudo-random f32 of mixed size and sign, so that sums round.
pub(crate) fn random(rank: usize, len: usize) -> Vec<f32> {
    let mut state = rank as u64 + 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut bits = state;
            bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            bits ^= bits >> 31;
            let fraction = (bits >> 40) as f32 / (1 << 23) as f32 - 1.0;
            fraction * f32::powi(2.0, (bits % 13) as i32 - 6)
        })
        .collect()
}
