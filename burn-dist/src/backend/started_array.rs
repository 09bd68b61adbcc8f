//! [`StartedArray`]: a collective on a tensor that runs beside its rank, in host or in device memory.

use std::panic::Location;
use std::sync::{Arc, Mutex};

use burn::backend::{
    Dispatch, DispatchTensor, TensorMetadata, ops::FloatTensorOps, tensor::FloatTensor,
};
use burn::tensor::{Shape, Tensor};

use super::{CallPlace, CollectiveCall, DistributedBackend, StartedCall};
use crate::communicator::{DeviceWork, Operation, Work};
use crate::error::Result;
use crate::group::ProcessGroup;

/// What is to be started, and where the backend that starts it leaves the work.
#[derive(Debug, Clone)]
pub struct StartRequest {
    group: ProcessGroup,
    operation: Operation,
    site: &'static Location<'static>,
    label: Option<Arc<str>>,
    slot: Arc<Mutex<Option<Result<Begun>>>>,
}

#[derive(Debug)]
enum Begun {
    /// The output comes with it.
    Host(Work),
    /// The output is in its place when this was waited for.
    Device(DeviceWork),
    /// The output is there.
    Done,
}

impl StartRequest {
    /// Starts the call. Returns the output, or anything if that comes from host memory.
    pub(super) fn start<B: CollectiveCall>(self, tensor: FloatTensor<B>) -> FloatTensor<B> {
        let (device, dtype) = (tensor.device(), tensor.dtype());
        let nothing = || B::float_empty(Shape::new([0]), &device, dtype.into());
        let place = CallPlace {
            group: &self.group,
            device: &device,
            site: self.site,
            label: self.label.as_deref(),
        };
        let (begun, output) = match B::start_call(tensor, self.operation, place, true) {
            Ok(StartedCall::Done { output }) => (Ok(Begun::Done), output),
            Ok(StartedCall::Host { work, .. }) => (Ok(Begun::Host(work)), nothing()),
            Ok(StartedCall::InPlace { work, output }) => (Ok(Begun::Device(work)), output),
            Err(failure) => (Err(failure), nothing()),
        };
        let mut slot = self
            .slot
            .lock()
            .expect("invariant: no panic under this lock");
        *slot = Some(begun);
        output
    }
}

/// A started collective on a float tensor without a graph. Its input goes through host memory unless the group
/// [reaches](crate::communicator::Communicator::device) the tensor's device.
#[must_use = "a started collective has no output before `wait`"]
#[derive(Debug)]
pub struct StartedArray {
    begun: Result<Begun>,
    output: DispatchTensor,
}

impl StartedArray {
    /// Starts `operation` along the first dim; `label` says what it is for, which members compare.
    #[track_caller]
    pub fn start<const D: usize>(
        tensor: Tensor<D>,
        operation: Operation,
        group: &ProcessGroup,
        label: Option<&str>,
    ) -> Self {
        let slot = Arc::new(Mutex::new(None));
        let request = StartRequest {
            group: group.clone(),
            operation,
            site: Location::caller(),
            label: label.map(Into::into),
            slot: slot.clone(),
        };
        let output = Dispatch::dist_start(tensor.without_autodiff().into_dispatch(), request);
        let begun = slot
            .lock()
            .expect("invariant: no panic under this lock")
            .take();
        Self {
            begun: begun.expect("invariant: every backend leaves its work"),
            output,
        }
    }

    /// Whether `wait` would return at once, and the output be there.
    pub fn is_done(&self) -> bool {
        match &self.begun {
            Ok(Begun::Host(work)) => work.is_done(),
            Ok(Begun::Device(work)) => work.is_done(),
            Ok(Begun::Done) | Err(_) => true,
        }
    }

    /// Waits for the output: in device memory the device does, not this thread.
    ///
    /// # Errors
    /// What the group met, also when the call was to be started.
    pub fn wait<const D: usize>(self) -> Result<Tensor<D>> {
        let output = match self.begun? {
            Begun::Done => self.output,
            Begun::Device(work) => {
                work.wait()?;
                self.output
            }
            Begun::Host(work) => {
                let device = self.output.device();
                Dispatch::float_from_data(work.wait()?.into(), &device)
            }
        };
        Ok(Tensor::from_dispatch(output))
    }
}
