//! [`StartedCall`]: a call on a tensor that was started.

use burn::backend::{
    Backend,
    tensor::{Device, FloatTensor},
};

use super::{CallPlace, staged};
use crate::communicator::{Call, DeviceWork, Operation, Work};
use crate::error::Result;

/// A started call on a tensor, and where its output comes from.
#[derive(Debug)]
pub enum StartedCall<B: Backend> {
    /// It is here: the call was waited for.
    Done {
        /// The output.
        output: FloatTensor<B>,
    },
    /// From host memory.
    Host {
        /// The call.
        work: Work,
        /// Where the output goes.
        device: Device<B>,
    },
    /// It is in its place once the device has carried the call out.
    InPlace {
        /// The call.
        work: DeviceWork,
        /// The output.
        output: FloatTensor<B>,
    },
}

impl<B: Backend> StartedCall<B> {
    /// Reads the tensor into host memory, and calls with that.
    ///
    /// # Errors
    /// If the tensor cannot be read; if not `beside`, also what the group met.
    pub fn on_host(
        tensor: FloatTensor<B>,
        operation: Operation,
        place: CallPlace<'_, B>,
        beside: bool,
    ) -> Result<Self> {
        let input = staged::read::<B>(tensor, place.group)?;
        let mut call = Call::new(operation, input).at(place.site);
        call.label = place.label.map(Into::into);
        let communicator = place.group.communicator();
        let device = place.device.clone();
        if beside {
            let work = communicator.start(call);
            return Ok(Self::Host { work, device });
        }
        let output = staged::write::<B>(communicator.run(call)?, &device);
        Ok(Self::Done { output })
    }

    /// The output.
    ///
    /// # Errors
    /// What the group met.
    pub fn wait(self) -> Result<FloatTensor<B>> {
        match self {
            Self::Done { output } => Ok(output),
            Self::Host { work, device } => Ok(staged::write::<B>(work.wait()?, &device)),
            Self::InPlace { work, output } => work.wait().map(|()| output),
        }
    }
}
