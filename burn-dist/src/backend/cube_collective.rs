//! Collectives on CubeCL's runtimes: tensors of CUDA devices stay there, where the group can reach them.
#![allow(unsafe_code)]

use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

use super::{CallPlace, CollectiveCall, DistributedBackend, StartedCall};
use crate::communicator::Operation;
use crate::error::Result;

impl DistributedBackend for CubeBackend {}

impl CollectiveCall for CubeBackend {
    fn start_call(
        tensor: CubeTensor,
        operation: Operation,
        place: CallPlace<'_, Self>,
        beside: bool,
    ) -> Result<StartedCall<Self>> {
        #[cfg(feature = "cuda")]
        if let Some(device) = place.group.communicator().device()
            && let burn_cubecl::CubeDevice::Cuda(own) = &tensor.device
            && tensor.qparams.is_none()
            && let Some(shape) = cuda::output_shape(&tensor, &operation, place)
        {
            let own = own.index;
            return cuda::start(tensor, operation, shape, place, device, own);
        }
        StartedCall::on_host(tensor, operation, place, beside)
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use burn::backend::TensorMetadata;
    use burn::tensor::Shape;
    use burn_cubecl::kernel::into_contiguous;
    use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
    use cubecl::cuda::CudaRuntime;
    use cubecl_runtime::runtime::Runtime;

    use super::*;
    use crate::communicator::{DeviceCall, DeviceCommunicator};

    /// The shape that comes out, of what a device offers.
    pub(super) fn output_shape(
        tensor: &CubeTensor,
        operation: &Operation,
        place: CallPlace<'_, CubeBackend>,
    ) -> Option<Vec<usize>> {
        DeviceCall::output_shape(operation, &tensor.shape().to_vec(), place.group.size())
    }

    pub(super) fn start(
        tensor: CubeTensor,
        operation: Operation,
        output_shape: Vec<usize>,
        place: CallPlace<'_, CubeBackend>,
        device: &dyn DeviceCommunicator,
        own: usize,
    ) -> Result<StartedCall<CubeBackend>> {
        let group = place.group;
        if own != device.device_index() {
            return Err(group.invalid_call(
                operation.name(),
                format!(
                    "the tensor is on CUDA device {own}, but the group on {}",
                    device.device_index()
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
        // Blocks until the device's thread has submitted all that comes before, so that an event stands for it.
        let address = |tensor: &CubeTensor| {
            let client = &tensor.client;
            let found =
                client.get_resource::<<CudaRuntime as Runtime>::Server>(tensor.handle.clone());
            found.map_err(|error| {
                let hint = "look at the device's own error above";
                group.invalid_call(
                    operation.name(),
                    format!("no address of a tensor: {error}"),
                    hint,
                )
            })
        };
        let (from, to) = (address(&input)?, address(&output)?);
        let (send, receive) = (from.resource().ptr, to.resource().ptr);
        let call = DeviceCall {
            dtype: input.dtype,
            shape: input.shape().to_vec(),
            operation,
            send,
            receive,
            site: place.site,
            keep: Box::new((from, to, input, output.clone())),
        };
        // SAFETY: both addresses are of contiguous tensors of these shapes on this device; the call keeps them, and
        // their memory in its place.
        let work = unsafe { device.start(call) }?;
        Ok(StartedCall::InPlace { work, output })
    }
}
