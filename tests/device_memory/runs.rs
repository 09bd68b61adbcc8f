//! Where the ranks start, and what they may call.

use std::sync::Mutex;

use burn::tensor::{DType, Device};
use burn_dist::communicator::RecordedCall;
use burn_dist::data_parallel::ParameterTable;
pub(crate) use tests::parameter_bits as bits;

use crate::models::Toy;

pub(crate) const STEPS: usize = 3;
pub(crate) const LR: f64 = 1e-2;

/// Its memory is that of the process.
pub(crate) fn device() -> Device {
    Device::cpu().autodiff()
}

/// A model that every rank starts from.
pub(crate) struct Start<M>(Mutex<M>);

impl<M: Toy> Start<M> {
    /// For one rank.
    pub(crate) fn get(&self) -> M {
        self.0.lock().expect("not poisoned").clone()
    }

    /// Parameters, and how many of them are trained.
    pub(crate) fn num_parameters(&self) -> (usize, usize) {
        let table = ParameterTable::of(&self.get()).expect("nothing is wrapped");
        let trained = table.specs().iter().filter(|spec| spec.trainable);
        (table.specs().len(), trained.count())
    }
}

pub(crate) fn start<M: Toy>() -> Start<M> {
    Start(Mutex::new(M::init(&device())))
}

/// The calls on device memory, when those on host memory say no more than which of `parameters` were used, and
/// sums of squares.
pub(crate) fn check_calls(calls: &[RecordedCall], parameters: usize) -> Vec<&RecordedCall> {
    /// What an exact sum of squares has.
    const NORM: usize = 137;
    for call in calls.iter().filter(|call| !call.on_device) {
        let is_small = match call.dtype {
            DType::U8 => call.bytes <= parameters,
            _ => call.shape == [NORM],
        };
        assert!(is_small, "through the host: {call:?}");
    }
    calls.iter().filter(|call| call.on_device).collect()
}
