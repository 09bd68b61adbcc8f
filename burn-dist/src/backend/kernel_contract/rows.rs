//! Losses, and attention.

use burn::tensor::{DType, Device, Int, Tensor};
use proptest::prelude::*;

use super::bounds::{Bound, assert_is, wide};
use super::inputs::{Input, inputs};
use super::{config, contract, on_devices};
use crate::backend::{self, KernelChoice};
use crate::kernels::ROW_SLOPES;

/// All columns, none, or all but padding.
fn tokens(input: &Input) -> usize {
    match input.pick(10, 3) {
        0 => 0,
        1 => input.columns,
        _ => input.columns - input.columns / 3,
    }
}

fn check_row_parts(device: &Device, input: &Input) {
    let (dtype, tokens) = (input.dtype, tokens(input));
    let logits = input.tensor(1, dtype, device);
    let held = input.held(&[&logits]);
    let targets = input.targets(tokens, device);
    let got = backend::row_parts(logits, targets, tokens, KernelChoice::Fused);
    held.assert_untouched();
    let flex = Device::flex();
    let logits = input.tensor(1, dtype, &flex).cast(wide(dtype));
    let targets = input.targets(tokens, &flex);
    let right = backend::row_parts(logits, targets, tokens, KernelChoice::Twin);
    let bound = Bound::Near(tokens.max(1) as f64);
    // The largest and the target's are not added up.
    for (column, bound) in [Bound::Equal, bound, Bound::Equal, bound]
        .into_iter()
        .enumerate()
    {
        let place = [0..input.rows, column..column + 1];
        let (got, right) = (got.clone().slice(place.clone()), right.clone().slice(place));
        assert_is(got, right, wide(dtype), bound, &format!("part {column}"));
    }
}

fn check_row_slopes(device: &Device, input: &Input) {
    let (dtype, tokens) = (input.dtype, tokens(input));
    let begin = |device: &Device| {
        let slopes = input.values(2, input.rows * ROW_SLOPES);
        let slopes = input.place(slopes, [input.rows, ROW_SLOPES], wide(dtype), device);
        (
            input.tensor(1, dtype, device),
            slopes,
            input.targets(tokens, device),
        )
    };
    let (logits, slopes, targets) = begin(device);
    let held = input.held(&[&logits, &slopes]);
    let got = backend::row_slopes(logits, targets, slopes, tokens, KernelChoice::Fused);
    held.assert_untouched();
    let (logits, slopes, targets) = begin(&Device::flex());
    let logits = logits.cast(wide(dtype));
    let right = backend::row_slopes(logits, targets, slopes, tokens, KernelChoice::Twin);
    assert_is(got, right, dtype, Bound::Near(10.0), "gradient");
}

fn check_softmax_merge(device: &Device, input: &Input) {
    let dtype = input.dtype;
    let shape = [input.rows, input.columns];
    let logs = [3, 4].map(|number| {
        let values = input.values(number, input.rows).into_iter();
        let logs = values.map(|x| match x {
            // No keys.
            x if x < -1.0 => f64::NEG_INFINITY,
            x => 10.0 * x,
        });
        logs.collect::<Vec<_>>()
    });
    let begin = |device: &Device| {
        let outputs = [0, 1].map(|side| {
            let mut values = input.values(side, input.len());
            for (i, value) in values.iter_mut().enumerate() {
                if logs[side][i / input.columns] == f64::NEG_INFINITY {
                    *value = f64::NAN;
                }
            }
            input.place(values, shape, dtype, device)
        });
        let logs = logs
            .clone()
            .map(|logs| input.place(logs, [input.rows, 1], wide(dtype), device));
        (outputs, logs)
    };
    let (outputs, given) = begin(device);
    let held = input.held(&[&outputs[0], &outputs[1], &given[0], &given[1]]);
    let (got, log) = backend::softmax_merge(outputs, given, KernelChoice::Fused);
    held.assert_untouched();
    let (outputs, given) = begin(&Device::flex());
    let outputs = outputs.map(|output| output.cast(wide(dtype)));
    let (right, right_log) = backend::softmax_merge(outputs, given, KernelChoice::Twin);
    let data = got.to_data();
    assert!(data.iter::<f64>().all(f64::is_finite), "nothing leaks");
    assert_is(got, right, dtype, Bound::Near(1.0), "output");
    assert_is(log, right_log, wide(dtype), Bound::Near(1.0), "logarithm");
}

fn row_parts(devices: &[Device]) {
    proptest!(config(), |(input in inputs())| {
        on_devices(devices, &input, check_row_parts);
    });
}

fn row_slopes(devices: &[Device]) {
    proptest!(config(), |(input in inputs())| {
        on_devices(devices, &input, check_row_slopes);
    });
}

fn softmax_merge(devices: &[Device]) {
    proptest!(config(), |(input in inputs())| {
        on_devices(devices, &input, check_softmax_merge);
    });
}

/// Logits of minus infinity are tokens without weight; a row of nothing else has no sum.
fn logits_of_minus_infinity(devices: &[Device]) {
    let nothing = f32::NEG_INFINITY;
    for device in devices {
        let logits = [[nothing, 1.0, nothing, 1.0], [nothing; 4]];
        let logits = Tensor::<2>::from_floats(logits, device);
        let targets = Tensor::<2, Int>::from_data([[1], [-1]], (device, DType::I32));
        let parts = backend::row_parts(logits, targets, 4, KernelChoice::Fused);
        let parts: Vec<f32> = parts.into_data().iter::<f32>().collect();
        assert_eq!(parts[..3], [1.0, 2.0, 1.0]);
        assert_eq!(parts[4], nothing);
        assert!(parts[5].is_nan());
    }
}

contract!(
    row_parts,
    row_slopes,
    softmax_merge,
    logits_of_minus_infinity
);
