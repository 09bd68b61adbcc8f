//! Loops compiled for the widest vectors that this processor has.
#![allow(unsafe_code)]

/// A loop over arrays.
pub(crate) trait VectorLoop {
    /// What it gives.
    type Output;

    /// Runs it; inlined into functions for each kind of processor. `FUSED` tells whether the processor rounds a
    /// product and a sum at once; a loop that uses it makes sure of equal results.
    fn run<const FUSED: bool>(self) -> Self::Output;
}

/// Runs a loop, compiled for every processor of this kind and for those with wider vectors (AVX2, AVX-512).
#[inline(always)]
pub(crate) fn vectorised_loop<L: VectorLoop>(l: L) -> L::Output {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has these instructions.
            return unsafe { with_avx512(l) };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has these instructions.
            return unsafe { with_avx2(l) };
        }
    }
    l.run::<false>()
}

/// As [`vectorised_loop`]. Each operation is rounded on its own: results have the same bits on all.
#[inline(always)]
pub(crate) fn vectorised<R>(f: impl FnOnce() -> R) -> R {
    struct Plain<F>(F);
    impl<R, F: FnOnce() -> R> VectorLoop for Plain<F> {
        type Output = R;

        #[inline(always)]
        fn run<const FUSED: bool>(self) -> R {
            (self.0)()
        }
    }
    vectorised_loop(Plain(f))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,fma")]
fn with_avx512<L: VectorLoop>(l: L) -> L::Output {
    l.run::<true>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2<L: VectorLoop>(l: L) -> L::Output {
    l.run::<false>()
}

/// Asks for the memory `bytes` behind `row`, as long as that, before it is needed. There need be none.
#[inline(always)]
pub(crate) fn prefetch<T, const N: usize>(row: &[T; N], bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..size_of_val(row)).step_by(64) {
        let place = row.as_ptr().cast::<i8>().wrapping_add(bytes + line);
        // SAFETY: every processor of this kind has the instruction, which takes any address.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(place) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (row, bytes);
}
