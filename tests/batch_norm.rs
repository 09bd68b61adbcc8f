//! Batch normalization over ranks beside Burn's over the whole batch.

use burn::module::{Module, Param, RunningState};
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor, TensorData, Tolerance};
use burn_dist::batch_norm::SyncBatchNorm;
use burn_dist::{DistError, ProcessGroup};
use tests::run_group;

const FEATURES: usize = 3;

/// `[rows, 3, 2, 2]`, those of a batch from `from` on; `shift` makes a mean far from zero.
fn maps(from: usize, rows: usize, shift: f64, device: &Device) -> Tensor<4> {
    let values: Vec<f64> = (from * 12..(from + rows) * 12)
        .map(|i| ((i * i * 7 + i * 3) % 23) as f64 / 5.0 - 2.0 + shift)
        .collect();
    Tensor::from_data(
        TensorData::new(values, [rows, FEATURES, 2, 2]),
        (device, DType::F64),
    )
}

/// In 64 bits, with parameters of which no two are alike.
fn norm(device: &Device) -> BatchNorm {
    let mut norm = BatchNormConfig::new(FEATURES).init(device);
    let values = |values: [f64; FEATURES]| {
        let values = Tensor::from_data(TensorData::from(values), (device, DType::F64));
        Param::from_tensor(values)
    };
    norm.gamma = values([0.5, -1.5, 2.0]);
    norm.beta = values([0.25, 1.0, -3.0]);
    let inner = device.clone().inner();
    norm.running_mean = RunningState::new(Tensor::zeros([FEATURES], (&inner, DType::F64)));
    norm.running_var = RunningState::new(Tensor::ones([FEATURES], (&inner, DType::F64)));
    norm
}

fn data<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().try_to_vec().expect("f64")
}

/// Weights of a loss, another for each element of the rows from `from` on.
fn weights(from: usize, rows: usize, device: &Device) -> Tensor<4> {
    maps(from * 5 + 1, rows, 0.0, device)
}

/// Output, gradient of the input, of gamma and beta, running mean and variance.
fn seen(
    input: Tensor<4>,
    weights: Tensor<4>,
    norm: &BatchNorm,
    forward: impl FnOnce(Tensor<4>) -> Tensor<4>,
) -> [Vec<f64>; 6] {
    let input = input.require_grad();
    let output = forward(input.clone());
    let mut gradients = (output.clone().powi_scalar(2) * weights).sum().backward();
    let of_input = input.grad_remove(&mut gradients).expect("tracked");
    let parameters = GradientsParams::from_grads(gradients, norm);
    let of = |param: &Param<Tensor<1>>| data(parameters.get::<1>(param.id).expect("used"));
    [
        data(output),
        data(of_input),
        of(&norm.gamma),
        of(&norm.beta),
        data(norm.running_mean.value_sync()),
        data(norm.running_var.value_sync()),
    ]
}

/// Adds up what several ranks have of it.
fn sum(parts: impl Iterator<Item = Vec<f64>>) -> Vec<f64> {
    parts
        .reduce(|a, b| a.iter().zip(b).map(|(a, b)| a + b).collect())
        .expect("a rank")
}

#[track_caller]
fn assert_close(left: Vec<f64>, right: &[f64], what: &str) {
    let length = [left.len()];
    let right = TensorData::new(right.to_vec(), length);
    println!("{what}");
    TensorData::new(left, length).assert_approx_eq::<f64>(&right, Tolerance::absolute(1e-10));
}

#[test]
fn ranks_with_any_number_of_rows_are_one_device_with_all_of_them() {
    for rows in [
        &[4, 4][..],
        &[1, 5],
        &[2, 3, 1],
        &[3, 1, 1, 2],
        &[0, 4],
        &[4],
    ] {
        for shift in [0.0, 1000.0] {
            let device = Device::flex().autodiff();
            let starts: Vec<usize> = (0..rows.len()).map(|r| rows[..r].iter().sum()).collect();
            let parts = starts.iter().zip(rows).filter(|(_, rows)| **rows > 0);
            let parts = parts.map(|(&from, &rows)| weights(from, rows, &device));
            let whole = norm(&device);
            let one = seen(
                maps(0, rows.iter().sum(), shift, &device),
                Tensor::cat(parts.collect(), 0),
                &whole,
                |input| whole.forward(input),
            );
            let counts = rows.to_vec();
            let ranks = run_group(rows.len(), move |group| {
                let device = Device::flex().autodiff();
                let layer = SyncBatchNorm::from(norm(&device)).over(&group);
                let (from, rows) = (starts[group.index()], counts[group.index()]);
                Ok(seen(
                    maps(from, rows, shift, &device),
                    weights(from, rows, &device),
                    &layer.clone().into(),
                    |input| layer.forward(input).expect("it goes through"),
                ))
            });
            let ranks: Vec<[Vec<f64>; 6]> = ranks.into_iter().map(|r| r.expect("a rank")).collect();
            let joined = |part: usize| ranks.iter().flat_map(|r| r[part].clone()).collect();
            let what = format!("{rows:?} {shift}");
            assert_close(joined(0), &one[0], &format!("{what}: output"));
            assert_close(joined(1), &one[1], &format!("{what}: input's gradient"));
            for part in [2, 3] {
                let total = sum(ranks.iter().map(|rank| rank[part].clone()));
                assert_close(total, &one[part], &format!("{what}: parameter {part}"));
            }
            for part in [4, 5] {
                for rank in &ranks {
                    let what = format!("{what}: state {part}");
                    assert_close(rank[part].clone(), &one[part], &what);
                }
            }
        }
    }
}

#[test]
fn without_training_or_other_ranks_it_is_burn_s_layer_and_asks_nobody() {
    let outputs = run_group(2, |group: ProcessGroup| {
        if group.index() == 1 {
            return Ok(());
        }
        let device = Device::flex().autodiff();
        let same = |layer: &SyncBatchNorm, device: &Device| {
            let right = norm(device).forward(maps(0, 4, 0.0, device));
            let output = layer.forward(maps(0, 4, 0.0, device)).expect("local");
            assert_eq!(data(output), data(right));
        };
        same(&SyncBatchNorm::from(norm(&device)), &device);
        let layer = SyncBatchNorm::from(norm(&device)).over(&group);
        same(&layer.valid(), &device.clone().inner());
        let frozen = layer.freeze();
        let right = norm(&device).freeze().forward(maps(0, 4, 0.0, &device));
        let output = frozen.forward(maps(0, 4, 0.0, &device)).expect("local");
        assert_eq!(data(output), data(right));
        Ok(())
    });
    outputs.into_iter().for_each(|rank| rank.expect("a rank"));
}

/// Burn refuses a record in which a name is missing or left over.
#[test]
fn records_are_those_of_burn_s_layer() {
    let device = Device::flex().autodiff();
    let dense = norm(&device);
    dense.forward(maps(0, 4, 3.0, &device));
    // Burn writes what the last update left when that has been taken in.
    let mean = data(dense.running_mean.value_sync());
    assert_ne!(mean, [0.0; FEATURES]);
    let loaded = SyncBatchNorm::from(norm(&device)).load_record(dense.clone().into_record());
    assert_eq!(data(loaded.running_mean.value_sync()), mean);
    let back = norm(&device).load_record(loaded.clone().into_record());
    assert_eq!(data(back.running_mean.value_sync()), mean);
}

#[test]
fn other_features_are_refused_before_anything_is_sent() {
    let outputs = run_group(2, |group| {
        let device = Device::flex().autodiff();
        let layer = SyncBatchNorm::from(norm(&device)).over(&group);
        let input: Tensor<3> = Tensor::zeros([2, FEATURES + 1, 4], &device);
        match layer.forward(input) {
            Err(DistError::Config { .. }) => Ok(()),
            other => panic!("{other:?}"),
        }
    });
    outputs.into_iter().for_each(|rank| rank.expect("a rank"));
}

/// Of the numbers that a layer of C features needs, 2C+1 go to each other rank in either pass.
#[test]
fn statistics_are_all_that_travels() {
    let outputs = run_group(3, |group| {
        let device = Device::flex().autodiff();
        let layer = SyncBatchNorm::from(norm(&device)).over(&group);
        let input = maps(0, 4, 0.0, &device).require_grad();
        let output = layer.forward(input)?;
        let forward = group.traffic().total_sent();
        drop(output.sum().backward());
        Ok([forward, group.traffic().total_sent() - forward])
    });
    let numbers = (2 * FEATURES as u64 + 1) * 2;
    for rank in outputs {
        assert_eq!(rank.expect("a rank"), [numbers * 8; 2]);
    }
}

/// Squares of such values are beyond what 16 bits hold.
#[test]
fn sixteen_bits_are_normalized_in_thirty_two() {
    for (dtype, bound) in [(DType::F16, 4e-3), (DType::BF16, 4e-2)] {
        let outputs = run_group(2, move |group| {
            let device = Device::flex().autodiff();
            // Whole numbers that either type holds.
            let whole = maps(0, 4, 0.0, &device)
                .mul_scalar(10.0)
                .round()
                .mul_scalar(16.0);
            let layer = SyncBatchNorm::from(norm(&device)).over(&group);
            let part = group.index() * 2..group.index() * 2 + 2;
            let input = whole.clone().slice([part.clone()]).cast(dtype);
            let output = layer.forward(input)?;
            assert_eq!(output.dtype(), dtype);
            let right = norm(&device).forward(whole).slice([part]);
            let off = output.cast(DType::F64).sub(right).abs().max();
            Ok(off.into_scalar::<f64>())
        });
        for off in outputs {
            let off = off.expect("a rank");
            assert!(off < bound, "{dtype:?}: {off}");
        }
    }
}
