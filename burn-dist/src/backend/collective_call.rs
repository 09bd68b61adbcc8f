//! [`CollectiveCall`]: one call on the array of a tensor, the innermost of every collective.

use burn::backend::{Backend, tensor::FloatTensor};

use super::{CallPlace, StartedCall};
use crate::communicator::Operation;
use crate::error::Result;

/// How a backend carries out one call on a tensor. Everything around it, as the dims that travel in front, is shared.
///
/// The default goes through host memory. `Cube` leaves tensors of CUDA devices there, in groups whose communicator
/// [reaches them](crate::communicator::Communicator::device).
pub trait CollectiveCall: Backend {
    /// Starts `operation` along the first dim of `tensor`; if not `beside`, other calls of the group may wait for it.
    ///
    /// # Errors
    /// As [`DeviceCommunicator::start`](crate::communicator::DeviceCommunicator::start), and if the tensor cannot be
    /// read.
    fn start_call(
        tensor: FloatTensor<Self>,
        operation: Operation,
        place: CallPlace<'_, Self>,
        beside: bool,
    ) -> Result<StartedCall<Self>> {
        StartedCall::on_host(tensor, operation, place, beside)
    }
}

#[cfg(feature = "flex")]
impl CollectiveCall for burn::backend::Flex {}

impl CollectiveCall for burn::backend::Dispatch {}

impl<B: Backend, C: burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy>
    CollectiveCall for burn::backend::Autodiff<B, C>
{
}

#[cfg(feature = "fusion")]
impl<B: burn::backend::fusion::FusionBackend> CollectiveCall for burn::backend::fusion::Fusion<B> {}
