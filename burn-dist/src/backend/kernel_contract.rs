//! What every backend's kernels are tested for: the numbers of their twins.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, TensorData};

use super::KernelBackend;
use super::kernel_twins as twins;
use crate::kernels::{AdamWStep, SgdStep};

fn tensor(values: Vec<f64>, shape: [usize; 2], dtype: DType) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape).convert_dtype(dtype))
}

fn numbers(seed: usize, count: usize) -> Vec<f64> {
    let values = (0..count).map(|i| ((i * 7919 + seed * 104_729) % 1000) as f64);
    values.map(|value| value / 250.0 - 2.0).collect()
}

fn read(tensor: &FlexTensor) -> Vec<f64> {
    tensor.clone().into_data().iter::<f64>().collect()
}

fn assert_close(got: &FlexTensor, twin: &FlexTensor, what: &str) {
    assert_eq!(got.layout().shape(), twin.layout().shape(), "{what}");
    assert_eq!(got.dtype(), twin.dtype(), "{what}");
    for (got, twin) in read(got).iter().zip(read(twin)) {
        // Chains round 16-bit values after each operation.
        let bound = match got.abs().max(1.0) {
            size if what.contains("16") => size * 0.05,
            size => size * 1e-5,
        };
        assert!((got - twin).abs() <= bound, "{what}: {got} {twin}");
    }
}

#[test]
fn one_pass_is_the_chain_of_tensor_operations() {
    let step = AdamWStep {
        lr: 1e-2,
        beta_1: 0.9,
        beta_2: 0.99,
        epsilon: 1e-5,
        weight_decay: 0.1,
        time: 3,
        gradient_scale: 0.5,
    };
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let what = format!("{dtype:?}");
        for (rows, columns) in [(0, 3), (1, 1), (5, 7)] {
            let [p, g, m] =
                [1, 2, 3].map(|s| tensor(numbers(s, rows * columns), [rows, columns], dtype));
            let squares = numbers(4, rows * columns).iter().map(|x| x * x).collect();
            let v = tensor(squares, [rows, columns], dtype);
            let twin = twins::adamw::<Flex>(p.clone(), g.clone(), m.clone(), v.clone(), &step);
            let got = Flex::kernel_adamw(p, g, m, v, step);
            if matches!(dtype, DType::F32 | DType::F64) {
                let bits = |t: FlexTensor| t.into_data().as_bytes().to_vec();
                assert_eq!(bits(got.0.clone()), bits(twin.0.clone()), "{what}");
            }
            assert_close(&got.0, &twin.0, &what);
            assert_close(&got.1, &twin.1, &what);
            assert_close(&got.2, &twin.2, &what);
        }
    }
}

#[test]
fn rows_of_logits_are_those_of_the_chain() {
    let rows = 4;
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        for (columns, tokens) in [(1, 1), (40, 37), (3, 0)] {
            let what = format!("{dtype:?}, {tokens} of {columns}");
            let logits = tensor(numbers(5, rows * columns), [rows, columns], dtype);
            let targets = match tokens {
                0 => vec![-1; rows],
                _ => vec![0, -1, tokens as i64 - 1, tokens as i64 / 2],
            };
            let targets = FlexTensor::from_data(TensorData::new(targets, [rows, 1]));
            let twin = twins::row_parts::<Flex>(logits.clone(), targets.clone(), tokens);
            let parts = Flex::kernel_row_parts(logits.clone(), targets.clone(), tokens);
            if tokens > 0 {
                assert_close(&parts, &twin, &what);
            }
            let slopes = tensor(numbers(6, rows * 4), [rows, 4], twins::wide(dtype));
            let twin =
                twins::row_slopes::<Flex>(logits.clone(), targets.clone(), slopes.clone(), tokens);
            let got = Flex::kernel_row_slopes(logits, targets, slopes, tokens);
            assert_close(&got, &twin, &what);
        }
    }
}

/// Values in the wide type, so that 16-bit ones are compared with what one rounding gives.
fn widened(tensor: &FlexTensor) -> FlexTensor {
    let dtype = twins::wide(tensor.dtype());
    FlexTensor::from_data(tensor.clone().into_data().convert_dtype(dtype))
}

fn bytes(tensor: FlexTensor) -> Vec<u8> {
    tensor.into_data().as_bytes().to_vec()
}

#[test]
fn buckets_have_the_bits_of_the_chain() {
    let dtypes = [DType::F32, DType::F64, DType::F16, DType::BF16];
    for (from, to) in dtypes
        .into_iter()
        .flat_map(|from| dtypes.map(|to| (from, to)))
    {
        for (len, scale) in [(0, 1.0), (1, 0.5), (37, 1.0), (2051, 0.3)] {
            let what = format!("{from:?} to {to:?}, {len} times {scale}");
            let part = tensor(numbers(7, len), [1, len], from);
            let bucket = tensor(numbers(8, len + 5), [1, len + 5], to).reshape([len + 5].into());
            let twin = twins::pack::<Flex>(bucket.clone(), part.clone(), 3, scale);
            let got = Flex::kernel_pack(bucket.clone(), part, 3, scale);
            assert_eq!(bytes(got), bytes(twin), "{what}");
            let twin = twins::unpack::<Flex>(bucket.clone(), 2, len, scale, from);
            let got = Flex::kernel_unpack(bucket, 2, len, scale, from);
            assert_eq!(bytes(got), bytes(twin), "{what}");
        }
    }
}

#[test]
fn ranks_are_added_in_order() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for (ranks, len, is_mean) in [(1, 5, true), (3, 0, false), (4, 1001, false), (3, 77, true)]
        {
            let parts = tensor(numbers(9, ranks * len), [ranks, len], dtype);
            let twin = twins::rank_sum::<Flex>(parts.clone(), is_mean);
            let got = Flex::kernel_rank_sum(parts, is_mean);
            assert_eq!(bytes(got), bytes(twin), "{dtype:?}, {ranks} of {len}");
        }
    }
}

#[test]
fn parts_of_attention_are_those_of_the_chain() {
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        let (rows, columns) = (5, 7);
        let outputs =
            [10, 11].map(|seed| tensor(numbers(seed, rows * columns), [rows, columns], dtype));
        let mut logs = [12, 13].map(|seed| numbers(seed, rows));
        // Rows without keys on one side, on the other, and on both.
        (logs[0][1], logs[1][2]) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
        (logs[0][3], logs[1][3]) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
        let logs = logs.map(|logs| tensor(logs, [rows, 1], twins::wide(dtype)));
        let twin = twins::softmax_merge::<Flex>(outputs.clone(), logs.clone());
        let ([a, b], [c, d]) = (outputs, logs);
        let got = Flex::kernel_softmax_merge(a, c, b, d);
        let what = format!("{dtype:?}");
        assert_close(&got.0, &twin.0, &what.replace("BF16", "16"));
        for (got, twin) in read(&got.1).iter().zip(read(&twin.1)) {
            assert!(
                *got == twin || (got - twin).abs() < 1e-5,
                "{what}: {got} {twin}"
            );
        }
    }
}

#[test]
fn masters_give_rounded_copies_in_the_same_pass() {
    let step = AdamWStep {
        lr: 1e-2,
        beta_1: 0.9,
        beta_2: 0.99,
        epsilon: 1e-5,
        weight_decay: 0.1,
        time: 2,
        gradient_scale: 0.5,
    };
    for narrow in [DType::BF16, DType::F16] {
        for len in [0, 1, 1024, 2051] {
            let of = |seed, dtype| tensor(numbers(seed, len), [1, len], dtype);
            let (p, g, m) = (of(1, DType::F32), of(2, narrow), of(3, DType::F32));
            let squares = numbers(4, len).iter().map(|x| x * x).collect();
            let v = tensor(squares, [1, len], DType::F32);
            let wide = widened(&g);
            let right = Flex::kernel_adamw(p.clone(), wide, m.clone(), v.clone(), step);
            let got = Flex::kernel_adamw_copies(p, g, m, v, step, narrow);
            let rounded = right.0.clone().into_data().convert_dtype(narrow);
            assert_eq!(got.3.layout().shape(), got.0.layout().shape());
            assert_eq!(bytes(got.3), rounded.as_bytes());
            let (got, right) = ([got.0, got.1, got.2], [right.0, right.1, right.2]);
            assert_eq!(got.map(bytes), right.map(bytes), "{narrow:?}, {len}");
        }
    }
}

#[test]
fn momentum_in_sixteen_bits_is_rounded_once() {
    let step = SgdStep {
        lr: 0.1,
        momentum: 0.9,
        dampening: 0.1,
        nesterov: true,
        penalty: Some(0.01),
        is_first: false,
        gradient_scale: 0.5,
    };
    for dtype in [DType::F16, DType::BF16] {
        let [p, g, v] = [1, 2, 3].map(|seed| tensor(numbers(seed, 33), [3, 11], dtype));
        let [a, b, c] = [&p, &g, &v].map(widened);
        let right = twins::sgd::<Flex>(a, b, c, &step);
        let got = Flex::kernel_sgd(p, g, v, step);
        for (got, right) in [(got.0, right.0), (got.1, right.1)] {
            let rounded = right.into_data().convert_dtype(dtype);
            assert_eq!(bytes(got), rounded.as_bytes(), "{dtype:?}");
        }
    }
}

#[test]
fn squares_of_eight_tensors_are_their_exact_sum() {
    let empty = tensor(Vec::new(), [0, 3], DType::F32);
    let part = |seed, dtype| tensor(numbers(seed, 60), [6, 10], dtype);
    let parts = [
        part(1, DType::F32),
        part(2, DType::F16),
        empty.clone(),
        part(3, DType::BF16),
        part(4, DType::F64),
        // With gaps between its elements.
        part(5, DType::F32).narrow(1, 2, 3),
        empty.clone(),
        empty,
    ];
    let [a, b, c, d, e, f, g, h] = parts.clone();
    let got = Flex::kernel_square_sum(a, b, c, d, e, f, g, h);
    let twin = twins::exact_square_sum::<Flex>(parts.clone());
    assert_eq!(got.clone().to_parts(), twin.to_parts());
    let squares: f64 = parts.iter().flat_map(read).map(|x| x * x).sum();
    assert!((got.norm() - squares.sqrt()).abs() < 1e-12 * squares.sqrt());
}
