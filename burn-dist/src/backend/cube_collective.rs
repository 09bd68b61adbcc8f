//! Collectives on CubeCL's runtimes: tensors of a device that the group's members reach stay in its memory.
#![allow(unsafe_code)]

use std::mem::discriminant;

use burn::backend::{DispatchDevice, TensorMetadata};
use burn::tensor::Shape;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};
use cubecl_runtime::runtime::Runtime;

use super::{CallPlace, CollectiveCall, DistributedBackend, StartedCall};
use crate::communicator::{DeviceCall, DeviceCommunicator, Operation};
use crate::error::Result;

impl DistributedBackend for CubeBackend {}

impl CollectiveCall for CubeBackend {
    fn start_call(
        tensor: CubeTensor,
        operation: Operation,
        place: CallPlace<'_, Self>,
        beside: bool,
    ) -> Result<StartedCall<Self>> {
        let (shape, members) = (tensor.shape().to_vec(), place.group.size());
        if let Some(device) = place.group.communicator().device()
            && tensor.qparams.is_none()
            && is_of_runtime(&tensor.device, device)
            && let Some(shape) = DeviceCall::output_shape(&operation, &shape, members)
        {
            return start(tensor, operation, shape, place, device);
        }
        StartedCall::on_host(tensor, operation, place, beside)
    }
}

/// Whether the device whose memory the members reach is one of this tensor's runtime.
fn is_of_runtime(own: &CubeDevice, device: &dyn DeviceCommunicator) -> bool {
    match device.array_device().as_dispatch() {
        DispatchDevice::Cube(theirs) => discriminant(own) == discriminant(theirs),
        // The only variant where Burn has no other backend.
        #[allow(unreachable_patterns)]
        _ => false,
    }
}

fn start(
    tensor: CubeTensor,
    operation: Operation,
    output_shape: Vec<usize>,
    place: CallPlace<'_, CubeBackend>,
    device: &dyn DeviceCommunicator,
) -> Result<StartedCall<CubeBackend>> {
    let group = place.group;
    let theirs = device.array_device();
    if *theirs.as_dispatch() != DispatchDevice::Cube(tensor.device.clone()) {
        return Err(group.invalid_call(
            operation.name(),
            format!(
                "the tensor is on {:?}, but the group on {theirs:?}",
                tensor.device
            ),
            "move the tensor there, or name the device in the world's options",
        ));
    }
    let input = into_contiguous(tensor);
    let in_place = matches!(
        operation,
        Operation::AllReduce(_) | Operation::Broadcast { .. }
    );
    let output = match in_place && input.handle.can_mut() {
        true => input.clone(),
        false => empty_device_contiguous_dtype(
            input.client.clone(),
            input.device.clone(),
            Shape::from(output_shape),
            input.dtype,
        ),
    };
    let address = |tensor: &CubeTensor| {
        address(tensor).map_err(|error| {
            group.invalid_call(
                operation.name(),
                format!("no address of a tensor: {error}"),
                "look at the device's own error above",
            )
        })
    };
    let ((send, from), (receive, to)) = (address(&input)?, address(&output)?);
    let call = DeviceCall {
        dtype: input.dtype,
        shape: input.shape().to_vec(),
        operation,
        send,
        receive,
        site: place.site,
        label: place.label.map(Into::into),
        keep: Box::new((from, to, input, output.clone())),
    };
    // SAFETY: both addresses are of contiguous tensors of these shapes on this device; the call keeps them, and
    // their memory in its place. The output is given out when the work was waited for.
    let work = unsafe { device.start(call) }?;
    Ok(StartedCall::InPlace { work, output })
}

/// Where a tensor's array begins, and what keeps it there. Blocks until the device's thread has submitted all that
/// comes before, so that an event stands for it.
fn address(tensor: &CubeTensor) -> std::result::Result<(u64, Box<dyn Send>), String> {
    let (client, handle) = (&tensor.client, tensor.handle.clone());
    match &tensor.device {
        #[cfg(feature = "cuda")]
        CubeDevice::Cuda(_) => {
            let found =
                client.get_resource::<<cubecl::cuda::CudaRuntime as Runtime>::Server>(handle);
            let found = found.map_err(|error| error.to_string())?;
            Ok((found.resource().ptr, Box::new(found)))
        }
        #[cfg(feature = "cpu")]
        CubeDevice::Cpu(_) => {
            let found = client.get_resource::<<cubecl::cpu::CpuRuntime as Runtime>::Server>(handle);
            let found = found.map_err(|error| error.to_string())?;
            let (pointer, _) = found.resource().get_write_ptr_and_length();
            Ok((pointer as u64, Box::new(found)))
        }
        other => Err(format!("the memory of {other:?} has none")),
    }
}
