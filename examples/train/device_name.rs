//! [`DeviceName`]: where a rank's tensors are.

use std::str::FromStr;

use burn::tensor::Device;
use burn_dist::{DistError, Result};

/// `--device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceName {
    /// Host memory, with Burn's Flex.
    Flex,
    /// Host memory, with CubeCL's CPU runtime.
    Cpu,
    /// The CUDA device of each rank's own number on its host; several ranks meet over NCCL.
    Cuda,
    /// One CUDA device that all ranks of a host share; they meet through host memory.
    CudaAt(usize),
}

impl DeviceName {
    /// Checks that this program was built for such a device and that there is a driver for it, before any rank
    /// starts.
    ///
    /// # Errors
    /// [`DistError::Config`] naming the feature, or what is missing.
    pub fn check(self) -> Result<()> {
        let (feature, is_built) = match self {
            Self::Flex => return Ok(()),
            Self::Cpu => ("cpu", cfg!(feature = "cpu")),
            Self::Cuda | Self::CudaAt(_) => ("cuda", cfg!(feature = "cuda")),
        };
        if !is_built {
            return Err(DistError::config(
                format!("--device {self}, but train_gpt was built without its feature `{feature}`"),
                format!("build it with `cargo build --release -p examples --features {feature}`"),
            ));
        }
        match self {
            Self::Flex | Self::Cpu => Ok(()),
            // Further ones are looked at by the ranks whose own they are.
            Self::Cuda => check_cuda(0),
            Self::CudaAt(index) => check_cuda(index),
        }
    }

    /// The device of a rank.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn open(self, local_rank: usize) -> Result<Device> {
        self.check()?;
        match self {
            Self::Flex => Ok(Device::flex()),
            #[cfg(feature = "cpu")]
            Self::Cpu => Ok(Device::cpu()),
            #[cfg(feature = "cuda")]
            Self::Cuda => {
                check_cuda(local_rank)?;
                Ok(Device::cuda(local_rank))
            }
            #[cfg(feature = "cuda")]
            Self::CudaAt(index) => Ok(Device::cuda(index)),
            #[cfg(not(all(feature = "cpu", feature = "cuda")))]
            _ => unreachable!("refused by the check, on rank {local_rank} of the host"),
        }
    }

    /// The device over which a rank's groups use NCCL, if they do.
    pub fn nccl(self, local_rank: usize, ranks: usize) -> Option<usize> {
        (self == Self::Cuda && ranks > 1).then_some(local_rank)
    }
}

#[cfg(feature = "cuda")]
fn check_cuda(index: usize) -> Result<()> {
    let hint = "see what `burnrun doctor` says, or take --device flex";
    let driver = burn_dist::communicator::CudaDriver::load().map_err(|error| match error {
        DistError::Config { problem, .. } => DistError::config(problem, hint),
        other => other,
    })?;
    let count = driver.device_count();
    if index >= count {
        return Err(DistError::config(
            format!("CUDA device {index} is asked for, but this process sees {count}"),
            "take fewer ranks, or let them share one with --device cuda:0",
        ));
    }
    Ok(())
}

#[cfg(not(feature = "cuda"))]
fn check_cuda(_index: usize) -> Result<()> {
    Ok(())
}

impl std::fmt::Display for DeviceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Flex => write!(f, "flex"),
            Self::Cpu => write!(f, "cpu"),
            Self::Cuda => write!(f, "cuda"),
            Self::CudaAt(index) => write!(f, "cuda:{index}"),
        }
    }
}

impl FromStr for DeviceName {
    type Err = String;

    /// `flex`, `cpu`, `cuda` or `cuda:N`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "flex" => Ok(Self::Flex),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda),
            _ => {
                let index = text.strip_prefix("cuda:").map(str::parse);
                match index {
                    Some(Ok(index)) => Ok(Self::CudaAt(index)),
                    _ => Err("neither flex, cpu, cuda nor cuda:N".into()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        use DeviceName::*;
        for name in [Flex, Cpu, Cuda, CudaAt(0), CudaAt(12)] {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        for text in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda 1", "CPU"] {
            assert!(text.parse::<DeviceName>().is_err(), "{text}");
        }
    }

    #[test]
    fn only_ranks_with_a_device_each_meet_over_nccl() {
        assert_eq!(DeviceName::Cuda.nccl(3, 8), Some(3));
        assert_eq!(DeviceName::Cuda.nccl(0, 1), None);
        for name in [DeviceName::Flex, DeviceName::Cpu, DeviceName::CudaAt(1)] {
            assert_eq!(name.nccl(1, 2), None);
        }
    }
}
