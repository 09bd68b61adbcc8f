//! Sums on [`HostBuffer`]s, as a rank makes them before and after a collective.

use std::ops::Range;

use burn::tensor::{DType, bf16, f16};

use super::HostBuffer;
use crate::kernels::{KernelFloat, SquareSum, plain_copy, scaled_add, scaled_copy};

impl HostBuffer {
    /// The element type in which arrays of `dtype` are summed: 16-bit ones in f32.
    pub fn sum_dtype(dtype: DType) -> DType {
        match dtype {
            DType::F16 | DType::BF16 | DType::Flex32 => DType::F32,
            dtype => dtype,
        }
    }

    /// Writes (`first`) or adds the elements of `values` from element `start` on. Narrower values go into
    /// an array of f32 or f64 exactly.
    ///
    /// # Panics
    /// If the values do not fit, or are wider than this array's.
    pub fn put(&mut self, start: usize, values: &HostBuffer, first: bool) {
        let (dtype, size) = (self.dtype(), self.dtype().size());
        let place = start * size..(start + values.num_elements()) * size;
        write(&mut self.bytes_mut()[place], values, dtype, first);
    }

    /// Fills elements with -0.0, which changes no sum.
    ///
    /// # Panics
    /// If the array does not hold floats of 32 or 64 bits, or is shorter.
    pub fn fill_neutral(&mut self, elements: Range<usize>) {
        let (dtype, size) = (self.dtype(), self.dtype().size());
        let target = &mut self.bytes_mut()[elements.start * size..elements.end * size];
        match dtype {
            DType::F64 => bytemuck::cast_slice_mut::<u8, f64>(target).fill(-0.0),
            DType::F32 => bytemuck::cast_slice_mut::<u8, f32>(target).fill(-0.0),
            other => unreachable!("invariant: sums are of f32 or f64, not {other:?}"),
        }
    }

    /// Whether all elements are -0.0, which is what stands where no rank gave a value.
    pub fn is_neutral(&self, elements: Range<usize>) -> bool {
        let size = self.dtype().size();
        let bytes = &self.bytes()[elements.start * size..elements.end * size];
        match self.dtype() {
            DType::F64 => bytemuck::cast_slice::<u8, u64>(bytes)
                .iter()
                .all(|&bits| bits == (-0.0f64).to_bits()),
            _ => bytemuck::cast_slice::<u8, u32>(bytes)
                .iter()
                .all(|&bits| bits == (-0.0f32).to_bits()),
        }
    }

    /// Adds the squares of its floats to a sum.
    ///
    /// # Panics
    /// If it holds something else.
    pub fn add_squares(&self, sum: &mut SquareSum) {
        let bytes = self.bytes();
        match self.dtype() {
            DType::F32 | DType::Flex32 => sum.add_f32(bytemuck::cast_slice(bytes)),
            DType::F64 => sum.add_f64(bytemuck::cast_slice(bytes)),
            DType::F16 => sum.add_f16(bytemuck::cast_slice(bytes)),
            DType::BF16 => sum.add_bf16(bytemuck::cast_slice(bytes)),
            other => unreachable!("invariant: gradients are floats, not {other:?}"),
        }
    }

    /// Some elements of an array of f32 or f64, in the same or the other of these types.
    ///
    /// # Panics
    /// If they are not all there, or a type is neither.
    pub fn excerpt(&self, elements: Range<usize>, dtype: DType) -> HostBuffer {
        let size = self.dtype().size();
        let bytes = &self.bytes()[elements.start * size..elements.end * size];
        match (self.dtype(), dtype) {
            (DType::F32, DType::F64) => {
                let values: &[f32] = bytemuck::cast_slice(bytes);
                HostBuffer::from_values(values.iter().map(|&x| f64::from(x)).collect())
            }
            (DType::F64, DType::F32) => {
                let values: &[f64] = bytemuck::cast_slice(bytes);
                HostBuffer::from_values(values.iter().map(|&x| x as f32).collect())
            }
            (from, to) => {
                assert_eq!(from, to, "invariant: sums and masters are f32 or f64");
                let mut values = HostBuffer::zeros(from, vec![elements.len()]);
                values.bytes_mut().copy_from_slice(bytes);
                values
            }
        }
    }

    /// Divides every element once: an f32 or f64 array.
    pub fn divide(&mut self, divisor: usize) {
        match self.dtype() {
            DType::F64 => {
                let divisor = divisor as f64;
                bytemuck::cast_slice_mut::<u8, f64>(self.bytes_mut())
                    .iter_mut()
                    .for_each(|x| *x /= divisor);
            }
            _ => {
                let divisor = divisor as f32;
                bytemuck::cast_slice_mut::<u8, f32>(self.bytes_mut())
                    .iter_mut()
                    .for_each(|x| *x /= divisor);
            }
        }
    }
}

fn write(target: &mut [u8], values: &HostBuffer, dtype: DType, first: bool) {
    let bytes = values.bytes();
    match (dtype, values.dtype()) {
        (to, from) if to == from && first => plain_copy(bytes, target),
        (DType::F64, DType::F64) => put::<f64, f64>(target, bytes, first),
        (DType::F32, DType::F32) => put::<f32, f32>(target, bytes, first),
        (DType::F64, DType::F32) => put::<f64, f32>(target, bytes, first),
        (DType::F64, DType::F16) => put::<f64, f16>(target, bytes, first),
        (DType::F64, DType::BF16) => put::<f64, bf16>(target, bytes, first),
        (DType::F32, DType::F16) => put::<f32, f16>(target, bytes, first),
        (DType::F32, DType::BF16) => put::<f32, bf16>(target, bytes, first),
        (to, from) => unreachable!("invariant: {from:?} is not planned as {to:?}"),
    }
}

fn put<T, G>(target: &mut [u8], values: &[u8], first: bool)
where
    T: bytemuck::Pod + KernelFloat,
    G: bytemuck::Pod + KernelFloat,
{
    let target: &mut [T] = bytemuck::cast_slice_mut(target);
    let values: &[G] = bytemuck::cast_slice(values);
    match first {
        true => scaled_copy(values, 1.0, target),
        false => scaled_add(values, 1.0, target),
    }
}
