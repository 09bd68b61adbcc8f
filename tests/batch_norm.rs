//! Batch normalization over ranks beside Burn's over the whole batch.

use burn::module::{Module, ModuleVisitor, Param, RunningState};
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

/// Output, gradient of the input, of gamma and beta, running mean and variance.
fn seen(
    input: Tensor<4>,
    from: usize,
    forward: impl FnOnce(Tensor<4>) -> Tensor<4>,
    norm: impl FnOnce() -> BatchNorm,
) -> [Vec<f64>; 6] {
    let input = input.require_grad();
    let output = forward(input.clone());
    let rows = output.dims()[0];
    // Loss: every element with a weight of its own.
    let weights = maps(from * 5 + 1, rows, 0.0, &input.device());
    let mut gradients = (output.clone().powi_scalar(2) * weights).sum().backward();
    let input = input.grad_remove(&mut gradients).expect("tracked");
    let norm = norm();
    let parameters = GradientsParams::from_grads(gradients, &norm);
    let of = |param: &Param<Tensor<1>>| data(parameters.get::<1>(param.id).expect("used"));
    [
        data(output),
        data(input),
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
    for rows in [&[4, 4][..], &[1, 5], &[2, 3, 1], &[3, 1, 1, 2], &[4]] {
        for shift in [0.0, 1000.0] {
            let all: usize = rows.iter().sum();
            let starts: Vec<usize> = (0..rows.len()).map(|r| rows[..r].iter().sum()).collect();
            let device = Device::flex().autodiff();
            // The weights of the loss are those of the ranks.
            let whole = norm(&device);
            let input = maps(0, all, shift, &device).require_grad();
            let output = whole.forward(input.clone());
            let weights = starts.iter().zip(rows);
            let weights = weights.map(|(&from, &rows)| maps(from * 5 + 1, rows, 0.0, &device));
            let weights = Tensor::cat(weights.collect(), 0);
            let mut gradients = (output.clone().powi_scalar(2) * weights).sum().backward();
            let of_input = data(input.grad_remove(&mut gradients).expect("tracked"));
            let parameters = GradientsParams::from_grads(gradients, &whole);

            let starts = starts.clone();
            let counts = rows.to_vec();
            let ranks = run_group(rows.len(), move |group| {
                let device = Device::flex().autodiff();
                let layer = SyncBatchNorm::from(norm(&device)).over(&group);
                let (from, rows) = (starts[group.index()], counts[group.index()]);
                Ok(seen(
                    maps(from, rows, shift, &device),
                    from,
                    |input| layer.forward(input).expect("it goes through"),
                    || layer.clone().into(),
                ))
            });
            let ranks: Vec<[Vec<f64>; 6]> = ranks.into_iter().map(|r| r.expect("a rank")).collect();
            let joined = |part: usize| ranks.iter().flat_map(|r| r[part].clone()).collect();
            let what = format!("{rows:?} {shift}");
            assert_close(joined(0), &data(output), &format!("{what}: output"));
            assert_close(joined(1), &of_input, &format!("{what}: input's gradient"));
            for (part, param) in [(2, &whole.gamma), (3, &whole.beta)] {
                let right = data(parameters.get::<1>(param.id).expect("used"));
                let total = sum(ranks.iter().map(|rank| rank[part].clone()));
                assert_close(total, &right, &format!("{what}: parameter {part}"));
            }
            for (part, state) in [(4, &whole.running_mean), (5, &whole.running_var)] {
                for rank in &ranks {
                    let right = data(state.value_sync());
                    assert_close(rank[part].clone(), &right, &format!("{what}: state {part}"));
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

#[test]
fn records_are_those_of_burn_s_layer() {
    struct Names(Vec<String>, Vec<String>);
    impl ModuleVisitor for Names {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.0.push(name.into());
        }
        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.0.pop();
        }
        fn visit_float<const D: usize>(&mut self, _param: &Param<Tensor<D>>) {
            self.1.push(self.0.join("."));
        }
    }
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
    let (mut of_dense, mut of_sync) = (Names(vec![], vec![]), Names(vec![], vec![]));
    dense.visit(&mut of_dense);
    loaded.visit(&mut of_sync);
    assert_eq!(of_dense.1, of_sync.1);
    assert_eq!(of_dense.1.len(), 4);
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
