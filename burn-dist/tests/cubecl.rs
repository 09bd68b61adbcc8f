//! The decorator on CubeCL's devices, ranks in host memory or sharing a GPU:
//! `cargo test -p burn-dist --features cpu --test cubecl`; where there is a GPU,
//! `cargo test -p burn-dist --features cuda --test cubecl -- --ignored`.
#![cfg(any(feature = "cpu", feature = "cuda"))]

use std::time::Duration;

use burn::module::{Module, Param};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor, TensorData};
use burn_dist::collectives::{all_gather, all_reduce, copy_to_region};
use burn_dist::communicator::ReduceOp;
use burn_dist::data_parallel::DataParallel;
use burn_dist::{WorldOptions, launch_threads};

#[derive(Module, Debug)]
struct Scale {
    weight: Param<Tensor<2>>,
    shift: Param<Tensor<2>>,
}

fn row(values: [f32; 2], device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(values.to_vec(), [1, 2]), device)
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().expect("f32")
}

fn options() -> WorldOptions {
    WorldOptions {
        step_timeout: Duration::from_secs(120),
        ..WorldOptions::default()
    }
}

fn collectives_and_their_gradients(device: &Device) {
    let results = launch_threads(2, options(), |world| {
        let group = world.whole()?;
        let device = device.clone().autodiff();
        let rank = group.index() as f32;
        let x = row([1.0 + rank, 2.0], &device).require_grad();
        let sum = all_reduce(x.clone(), ReduceOp::Sum, &group)?;
        let joined = all_gather(x.clone(), 1, &group)?;
        let copied = copy_to_region(x.clone(), &group)?;
        let loss = (copied * (1.0 + rank)).sum();
        let grad = x.grad(&loss.backward()).expect("tracked");
        Ok((values(sum), values(joined), values(grad)))
    });
    for (sum, joined, grad) in results.expect("no fault") {
        assert_eq!(sum, [3.0, 4.0]);
        assert_eq!(joined, [1.0, 2.0, 2.0, 2.0]);
        assert_eq!(grad, [3.0, 3.0]);
    }
}

fn data_parallel_trains(device: &Device) {
    let results = launch_threads(2, options(), |world| {
        let group = world.whole()?;
        let device = device.clone().autodiff();
        let model = Scale {
            weight: Param::from_tensor(row([1.0, 1.0], &device)),
            shift: Param::from_tensor(row([0.0, 0.0], &device)),
        };
        let (parallel, mut model) = DataParallel::wrap(model, &group)?;
        let slope = row([2.0 + 2.0 * group.index() as f32, 4.0], &device);
        let loss = (model.weight.val() * slope + model.shift.val()).sum();
        let gradients = parallel.sync(loss.backward(), &model)?;
        model = SgdConfig::new().init().step(0.5, model, gradients);
        parallel.check_replicas(&model)?;
        Ok((values(model.weight.val()), values(model.shift.val())))
    });
    for (weight, shift) in results.expect("no fault") {
        assert_eq!(weight, [1.0 - 0.5 * 3.0, 1.0 - 0.5 * 4.0]);
        assert_eq!(shift, [-0.5, -0.5]);
    }
}

#[cfg(feature = "cpu")]
mod on_the_cpu {
    use burn::tensor::Device;

    #[test]
    fn collectives_and_their_gradients() {
        super::collectives_and_their_gradients(&Device::cpu());
    }

    #[test]
    fn data_parallel_trains() {
        super::data_parallel_trains(&Device::cpu());
    }
}

#[cfg(feature = "cuda")]
mod on_cuda {
    use burn::tensor::Device;

    #[test]
    #[ignore = "needs a CUDA device"]
    fn ranks_share_a_device_for_collectives_and_their_gradients() {
        super::collectives_and_their_gradients(&Device::cuda(0));
    }

    #[test]
    #[ignore = "needs a CUDA device"]
    fn ranks_share_a_device_for_data_parallel_training() {
        super::data_parallel_trains(&Device::cuda(0));
    }
}
