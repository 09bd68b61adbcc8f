//! What every backend's kernels are tested for: the numbers of their twins on Flex, of tensors of any length and
//! type, with gaps and without, that others hold or not.
//!
//! On Flex, kernels of AdamW, SGD, packing, unpacking and sums of ranks have the bits of their twins, in 16 bits
//! those of the twin in 32 bits, rounded once. All else lies within 1e-5 of the twin, relative to the size of what
//! was added up, and in 16 bits within one unit in the last place more.
//!
//! `cargo test -p burn-dist --features cpu,cuda --lib kernel_contract`; on a machine with a GPU also
//! `-- --ignored on_cuda`.
//!
//! | file | what |
//! |---|---|
//! | `inputs.rs` | tensors to start from |
//! | `bounds.rs` | how near results are to the twin's |
//! | `steps.rs` | optimizers |
//! | `buckets.rs` | packing, sums |
//! | `rows.rs` | losses, attention |

mod bounds;
mod buckets;
mod inputs;
mod rows;
mod steps;

use burn::tensor::{DType, Device};
use proptest::prelude::*;

use inputs::Input;

/// What is tested on every machine.
fn devices() -> Vec<Device> {
    vec![
        Device::flex(),
        #[cfg(feature = "cpu")]
        Device::cpu(),
    ]
}

/// Fewer with CubeCL's CPU, which compiles a kernel for each combination of types and widths.
fn config() -> ProptestConfig {
    ProptestConfig::with_cases(if cfg!(feature = "cpu") { 64 } else { 96 })
}

fn is_flex(device: &Device) -> bool {
    *device == Device::flex()
}

/// Runs a check on each device that takes its type: all but Flex compute in 32 bits.
fn on_devices(devices: &[Device], input: &Input, check: impl Fn(&Device, &Input)) {
    for device in devices {
        if is_flex(device) || input.dtype != DType::F64 {
            check(device, input);
        }
    }
}

/// Tests that functions of devices hold: on those of every machine; and, where ignored tests run, on a CUDA device.
macro_rules! contract {
    ($($property:ident),+) => {
        mod on_the_host {
            $(
                #[test]
                fn $property() {
                    super::$property(&super::super::devices());
                }
            )+
        }

        #[cfg(feature = "cuda")]
        mod on_cuda {
            $(
                #[test]
                #[ignore = "needs a CUDA device"]
                fn $property() {
                    super::$property(&[burn::tensor::Device::cuda(0)]);
                }
            )+
        }
    };
}

use contract;
