//! Optimizers.

use burn::tensor::{DType, Device};
use proptest::prelude::*;

use super::bounds::{Bound, assert_is, wide};
use super::inputs::{Input, inputs};
use super::{config, contract, is_flex, on_devices};
use crate::backend::{self, KernelChoice};
use crate::kernels::{AdamWStep, SgdStep};

/// Of optimizers' results, whose terms are of size 1 and less.
fn bound(device: &Device) -> Bound {
    match is_flex(device) {
        true => Bound::Bits,
        false => Bound::Near(0.1),
    }
}

fn adamw_steps() -> impl Strategy<Value = AdamWStep> {
    let decay = prop_oneof![Just(0.0f32), Just(0.1)];
    let scale = prop_oneof![Just(1.0), Just(0.37)];
    (1usize..20, decay, scale).prop_map(|(time, weight_decay, gradient_scale)| AdamWStep {
        lr: 1e-2,
        beta_1: 0.9,
        beta_2: 0.99,
        epsilon: 1e-3,
        weight_decay,
        time,
        gradient_scale,
    })
}

fn sgd_steps() -> impl Strategy<Value = SgdStep> {
    let penalty = prop_oneof![Just(None), Just(Some(0.01f32))];
    let scale = prop_oneof![Just(1.0), Just(0.37)];
    let flags = (any::<bool>(), any::<bool>());
    (flags, penalty, scale).prop_map(|((nesterov, is_first), penalty, gradient_scale)| SgdStep {
        lr: 0.1,
        momentum: 0.9,
        dampening: 0.1,
        nesterov,
        penalty,
        is_first,
        gradient_scale,
    })
}

/// The type of gradients: that of parameters, or one of fewer bits.
fn of_gradients(input: &Input) -> DType {
    match (input.dtype, input.pick(5, 2)) {
        (DType::F32, 0) => DType::F16,
        (DType::F32, 1) => DType::BF16,
        (dtype, _) => dtype,
    }
}

fn check_adamw(device: &Device, input: &Input, step: AdamWStep, copy: Option<DType>) {
    let (dtype, narrow) = (input.dtype, of_gradients(input));
    let start = |device: &Device| {
        (
            input.tensor(1, dtype, device),
            input.tensor(2, narrow, device),
            [
                input.tensor(3, dtype, device),
                input.squares(4, dtype, device),
            ],
        )
    };
    let (p, g, [m, v]) = start(device);
    let held = input.held(&[&p, &g, &m, &v]);
    let choice = KernelChoice::Fused;
    let (p, [m, v], copied) = match copy {
        None => {
            let (p, moments) = backend::adamw(p, g, [m, v], step, choice);
            (p, moments, None)
        }
        Some(copy) => {
            let (p, moments, copied) = backend::adamw_with_copies(p, g, [m, v], step, copy, choice);
            (p, moments, Some(copied))
        }
    };
    held.assert_untouched();
    if let (Some(copied), Some(copy)) = (copied, copy) {
        let rounded = p.clone().cast(copy);
        assert_is(copied, rounded, copy, Bound::Bits, "copies");
    }
    let (a, b, c) = start(&Device::flex());
    let [c, d] = c.map(|t| t.cast(wide(dtype)));
    let (a, b) = (a.cast(wide(dtype)), b.cast(wide(dtype)));
    let (a, [c, d]) = backend::adamw(a, b, [c, d], step, KernelChoice::Twin);
    let bound = bound(device);
    assert_is(p, a, dtype, bound, "parameter");
    assert_is(m, c, dtype, bound, "moment 1");
    assert_is(v, d, dtype, bound, "moment 2");
}

fn check_sgd(device: &Device, input: &Input, step: SgdStep) {
    let dtype = input.dtype;
    let start = |device: &Device| [1, 2, 3].map(|number| input.tensor(number, dtype, device));
    let [p, g, v] = start(device);
    let held = input.held(&[&p, &g, &v]);
    let (p, v) = backend::sgd(p, g, v, step, KernelChoice::Fused);
    held.assert_untouched();
    let [a, b, c] = start(&Device::flex()).map(|t| t.cast(wide(dtype)));
    let (a, c) = backend::sgd(a, b, c, step, KernelChoice::Twin);
    let bound = bound(device);
    assert_is(p, a, dtype, bound, "parameter");
    assert_is(v, c, dtype, bound, "velocity");
}

fn adamw(devices: &[Device]) {
    proptest!(config(), |(input in inputs(), step in adamw_steps())| {
        on_devices(devices, &input, |device, input| check_adamw(device, input, step, None));
    });
}

fn adamw_with_copies(devices: &[Device]) {
    proptest!(config(), |(input in inputs(), step in adamw_steps(), is_bf16 in any::<bool>())| {
        let copy = if is_bf16 { DType::BF16 } else { DType::F16 };
        on_devices(devices, &input, |device, input| check_adamw(device, input, step, Some(copy)));
    });
}

fn sgd(devices: &[Device]) {
    proptest!(config(), |(input in inputs(), step in sgd_steps())| {
        on_devices(devices, &input, |device, input| check_sgd(device, input, step));
    });
}

contract!(adamw, adamw_with_copies, sgd);
