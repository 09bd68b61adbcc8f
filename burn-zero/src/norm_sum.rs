//! [`NormSum`]: a sum of squares over arrays and ranks.

use burn::tensor::Tensor;
use burn_dist::backend::{KernelChoice, square_sum};
use burn_dist::communicator::{HostBuffer, ReduceOp};
use burn_dist::kernels::SquareSum;
use burn_dist::{ProcessGroup, Result};

/// The exact sum of squares of floats on one rank or many; only [`norm`](Self::norm) rounds. See
/// [`SquareSum`].
#[derive(Debug, Clone, Default)]
pub struct NormSum(SquareSum);

impl NormSum {
    /// Of nothing: 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Of all elements of all tensors. See [`square_sum`].
    pub fn of(tensors: Vec<Tensor<1>>) -> Self {
        Self(square_sum(tensors, KernelChoice::Fused))
    }

    /// Adds the squares of an array of floats.
    ///
    /// # Panics
    /// If the array holds something else.
    pub fn add(&mut self, values: &HostBuffer) {
        values.add_squares(&mut self.0);
    }

    /// Infinities and NaNs among the terms.
    pub fn num_not_finite(&self) -> u64 {
        self.0.num_not_finite()
    }

    /// The sum over all ranks of a group. Collective: an all_reduce of 137 integers.
    ///
    /// # Errors
    /// What the group met.
    pub fn all_reduce(self, group: &ProcessGroup) -> Result<Self> {
        let parts = group.all_reduce_values(self.0.to_parts(), ReduceOp::Sum)?;
        Ok(Self(SquareSum::from_parts(parts)))
    }

    /// The square root of the sum; infinite if a term was not finite.
    pub fn norm(&self) -> f64 {
        self.0.norm()
    }
}

impl From<SquareSum> for NormSum {
    fn from(sum: SquareSum) -> Self {
        Self(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f32]) -> NormSum {
        let mut sum = NormSum::new();
        sum.add(&HostBuffer::from_values(values.to_vec()));
        sum
    }

    fn of_wide(values: &[f64]) -> f64 {
        let mut sum = NormSum::new();
        sum.add(&HostBuffer::from_values(values.to_vec()));
        sum.norm()
    }

    #[test]
    fn known_norms() {
        assert_eq!(of(&[]).norm(), 0.0);
        assert_eq!(of(&[3.0, -4.0]).norm(), 5.0);
        assert_eq!(of(&[0.0, -0.0, 1.0]).norm(), 1.0);
        let smallest = f32::from_bits(1);
        assert_eq!(of(&[smallest]).norm(), f64::from(smallest));
        assert_eq!(of(&[f32::MAX]).norm(), f64::from(f32::MAX));
        assert_eq!(of(&[f32::MAX; 4]).norm(), 2.0 * f64::from(f32::MAX));
        assert_eq!(of_wide(&[3.0, -4.0]), 5.0);
        assert_eq!(of_wide(&[f64::MAX]), f64::MAX);
        assert_eq!(of_wide(&[f64::from_bits(1)]), f64::from_bits(1));
        assert!((of_wide(&[3e200, 4e200]) - 5e200).abs() <= 1e185);
        // More than one block, and sums far beyond what an f32 could hold.
        let many = vec![1.0f32; 200_001];
        assert_eq!(of(&many).norm(), 200_001f64.sqrt());
    }

    #[test]
    fn what_is_not_finite_is_counted() {
        let sum = of(&[1.0, f32::INFINITY, f32::NAN]);
        assert_eq!((sum.num_not_finite(), sum.norm()), (2, f64::INFINITY));
        assert_eq!(of_wide(&[f64::NAN]), f64::INFINITY);
    }

    #[test]
    fn sixteen_bits_as_they_are() {
        let mut sum = NormSum::new();
        let values = [half::bf16::from_f32(3.0), half::bf16::from_f32(-4.0)];
        sum.add(&HostBuffer::from_values(values.to_vec()));
        let values = [half::f16::from_f32(12.0)];
        sum.add(&HostBuffer::from_values(values.to_vec()));
        assert_eq!(sum.norm(), 13.0);
    }
}
