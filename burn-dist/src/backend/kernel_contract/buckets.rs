//! Packing, and sums.

use burn::tensor::{DType, Device, Tensor};
use proptest::prelude::*;

use super::bounds::{Bound, assert_is, wide};
use super::inputs::{Input, inputs};
use super::{config, contract, is_flex, on_devices};
use crate::backend::{self, KernelChoice};

/// Another type that a copy has, or the same.
fn other(input: &Input, device: &Device) -> DType {
    match input.pick(6, 3) {
        0 => DType::F32,
        1 => DType::F16,
        2 => DType::BF16,
        _ if is_flex(device) => DType::F64,
        _ => input.dtype,
    }
}

/// Flex's copies have the twin's bits, also in 16 bits.
fn bound(device: &Device) -> Bound {
    match is_flex(device) {
        true => Bound::Bits,
        false => Bound::Near(0.0),
    }
}

fn check_pack(device: &Device, input: &Input, scale: f64) {
    let (from, to) = (input.dtype, other(input, device));
    // Whole vectors, or not.
    let start = input.pick(7, 2) * 8 + input.pick(8, 1) * 3;
    let len = start + input.len() + input.pick(9, 2) * 4;
    let begin = |device: &Device| {
        (
            input.flat(1, len, to, device),
            input.tensor(2, from, device),
        )
    };
    let (bucket, part) = begin(device);
    let (buckets, parts) = (input.held(&[&bucket]), input.held(&[&part]));
    let got = backend::pack(bucket, part, start, scale, KernelChoice::Fused);
    buckets.assert_untouched();
    parts.assert_untouched();
    let (bucket, part) = begin(&Device::flex());
    let right = backend::pack(bucket, part, start, scale, KernelChoice::Twin);
    assert_is(got, right, to, bound(device), "bucket");
}

fn check_unpack(device: &Device, input: &Input, scale: f64) {
    let (from, to) = (input.dtype, other(input, device));
    let start = input.pick(7, 2) * 8 + input.pick(8, 1) * 3;
    let len = start + input.len() + input.pick(9, 2) * 4;
    let shape = [input.rows, input.columns];
    let bucket = input.flat(1, len, from, device);
    let held = input.held(&[&bucket]);
    let got = backend::unpack(bucket, start, shape, scale, to, KernelChoice::Fused);
    held.assert_untouched();
    let bucket = input.flat(1, len, from, &Device::flex());
    let right = backend::unpack(bucket, start, shape, scale, to, KernelChoice::Twin);
    assert_is(got, right, to, bound(device), "part");
}

fn check_rank_sum(device: &Device, input: &Input, is_mean: bool) {
    let dtype = input.dtype;
    let parts = input.tensor(1, dtype, device);
    let held = input.held(&[&parts]);
    let got: Tensor<1> = backend::rank_sum(parts, is_mean, KernelChoice::Fused);
    held.assert_untouched();
    let parts = input.tensor(1, dtype, &Device::flex());
    let right: Tensor<1> = backend::rank_sum(parts.cast(wide(dtype)), is_mean, KernelChoice::Twin);
    let bound = match is_flex(device) {
        true => Bound::Bits,
        false => Bound::Near(1.0),
    };
    assert_is(got, right, dtype, bound, "sum");
}

/// Up to eleven tensors, empty ones and other types among them.
fn check_square_sum(device: &Device, input: &Input, number: usize, bad: &[f64]) {
    let tensors = |device: &Device| -> Vec<Tensor<1>> {
        let lens = (0..number).map(|i| match i % 3 {
            0 => input.columns,
            1 => input.pick(i, 9000),
            _ => input.pick(i, 16),
        });
        let tensors = lens.enumerate().map(|(i, len)| {
            let dtype = if i % 4 == 3 { DType::F32 } else { input.dtype };
            let tensor = input.flat(i, len, dtype, device);
            match bad.get(i).filter(|_| len > 0) {
                Some(bad) => tensor.slice_fill([len / 2..len / 2 + 1], *bad),
                None => tensor,
            }
        });
        tensors.collect()
    };
    let given = tensors(device);
    let held = input.held(&given.iter().collect::<Vec<_>>());
    let got = backend::square_sum(given, KernelChoice::Fused);
    held.assert_untouched();
    let right = backend::square_sum(tensors(&Device::flex()), KernelChoice::Twin);
    if is_flex(device) {
        assert_eq!(got.to_parts(), right.to_parts(), "exact");
        return;
    }
    assert_eq!(got.num_not_finite(), right.num_not_finite());
    let (got, right) = (got.norm(), right.norm());
    let is_near = got == right || (got - right).abs() <= 1e-5 * right;
    assert!(is_near, "{got} is not {right}");
}

fn pack(devices: &[Device]) {
    proptest!(config(), |(input in inputs(), scale in prop_oneof![Just(1.0), Just(0.3)])| {
        on_devices(devices, &input, |device, input| check_pack(device, input, scale));
    });
}

fn unpack(devices: &[Device]) {
    proptest!(config(), |(input in inputs(), scale in prop_oneof![Just(1.0), Just(0.3)])| {
        on_devices(devices, &input, |device, input| check_unpack(device, input, scale));
    });
}

fn rank_sum(devices: &[Device]) {
    proptest!(config(), |(input in inputs(), is_mean in any::<bool>())| {
        on_devices(devices, &input, |device, input| check_rank_sum(device, input, is_mean));
    });
}

fn square_sum(devices: &[Device]) {
    let bad = prop_oneof![
        Just(vec![]),
        Just(vec![f64::NAN, f64::INFINITY, 1.0, f64::NEG_INFINITY]),
    ];
    proptest!(config(), |(input in inputs(), number in 1usize..12, bad in bad)| {
        on_devices(devices, &input, |device, input| check_square_sum(device, input, number, &bad));
    });
}

/// Partial sums of 32 bits may be infinite where the exact sum is not.
fn squares_that_overflow_count_as_not_finite(devices: &[Device]) {
    for device in devices {
        let tensor = Tensor::<1>::from_floats([1e30, 1.0], device);
        let sum = backend::square_sum(vec![tensor], KernelChoice::Fused);
        match is_flex(device) {
            true => assert!((sum.norm() - 1e30).abs() < 1e24),
            false => assert_eq!(sum.num_not_finite(), 1),
        }
    }
}

contract!(
    pack,
    unpack,
    rank_sum,
    square_sum,
    squares_that_overflow_count_as_not_finite
);
