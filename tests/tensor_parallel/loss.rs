//! The loss of split logits.

use burn::nn::LinearConfig;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{DType, Device, Int, Tensor};
use burn_dist::backend::KernelChoice;
use burn_dist::tensor_parallel::{
    ColumnParallelLinear, CrossEntropyOptions, VocabularyPart, vocab_parallel_cross_entropy,
    vocab_parallel_token_losses,
};
use burn_dist::{ProcessGroup, Result};
use tests::run_group;

use super::{compare, fixed, relative};

fn device() -> Device {
    Device::flex().autodiff()
}

/// This rank's columns of whole logits, zeros where there is no token.
fn own(logits: Tensor<2>, group: &ProcessGroup) -> Tensor<2> {
    let [rows, vocabulary] = logits.dims();
    let part = VocabularyPart::new(vocabulary, group.index(), group.size());
    let own = logits.slice_dim(1, part.start..part.start + part.tokens);
    let padding = [rows, part.rows - part.tokens];
    // What padding holds must not matter.
    Tensor::cat(
        vec![
            own.clone(),
            Tensor::full(padding, 50.0, (&own.device(), own.dtype())),
        ],
        1,
    )
}

/// Loss and whole gradient of the logits.
fn run(
    ranks: usize,
    logits: &Tensor<2>,
    targets: &Tensor<1, Int>,
    options: CrossEntropyOptions,
) -> (f64, Vec<f64>) {
    let (logits, targets) = (logits.clone().into_data(), targets.clone().into_data());
    let results = run_group(ranks, |group| {
        let dtype = logits.dtype();
        let whole = Tensor::<2>::from_data(logits.clone(), (&device(), dtype));
        let own = own(whole, &group).require_grad();
        let targets = Tensor::from_data(targets.clone(), (&device(), DType::I64));
        let loss = vocab_parallel_cross_entropy(own.clone(), targets, &options, &group)?;
        let value = loss.clone().into_data().iter::<f64>().next().expect("one");
        let gradient = own.grad(&loss.backward()).expect("tracked");
        Ok((value, gradient))
    });
    let results: Vec<_> = results.into_iter().map(|r| r.expect("no fault")).collect();
    let value = results[0].0;
    assert!(
        results
            .iter()
            .all(|result| result.0.to_bits() == value.to_bits())
    );
    let parts = results.into_iter().map(|result| result.1).collect();
    let whole = Tensor::cat(parts, 1);
    let [rows, _] = whole.dims();
    let padding = whole.clone().slice_dim(1, options.vocabulary..);
    assert!(
        padding.into_data().iter::<f64>().all(|slope| slope == 0.0),
        "padding learns nothing"
    );
    let whole = whole.narrow(1, 0, options.vocabulary);
    assert_eq!(whole.dims(), [rows, options.vocabulary]);
    (value, whole.into_data().iter().collect())
}

#[test]
fn the_published_value() {
    for shift in [0.0, 1000.0, -1000.0] {
        let logits = Tensor::<2>::from_data([[0.0, 1.0, 2.0, 3.0]], &device()) + shift;
        let targets = Tensor::from_data([3], &device());
        for ranks in [1, 2, 4] {
            let (loss, gradient) = run(ranks, &logits, &targets, CrossEntropyOptions::new(4));
            assert!((loss - 0.4401897).abs() < 1e-6, "{loss}");
            let right = [0.03206, 0.08714, 0.23688, -0.35609];
            assert!(relative(&gradient, &right) < 2e-5, "{gradient:?}");
        }
    }
}

/// PyTorch's definition, by hand, in f64: loss and gradient.
fn by_hand(
    logits: &[f64],
    targets: &[i64],
    vocabulary: usize,
    smoothing: f64,
    ignored: Option<i64>,
) -> (f64, Vec<f64>) {
    let counted = targets
        .iter()
        .filter(|&&t| Some(t) != ignored)
        .count()
        .max(1) as f64;
    let (mut loss, mut gradient) = (0.0, Vec::new());
    for (row, &target) in logits.chunks(vocabulary).zip(targets) {
        let counts = Some(target) != ignored;
        let total: f64 = row.iter().map(|z| z.exp()).sum();
        for (token, z) in row.iter().enumerate() {
            let is_target = f64::from(u8::from(token as i64 == target));
            let share = (1.0 - smoothing) * is_target + smoothing / vocabulary as f64;
            if counts {
                loss -= share * (z - total.ln()) / counted;
            }
            let slope = (z.exp() / total - share) / counted;
            gradient.push(if counts { slope } else { 0.0 });
        }
    }
    (loss, gradient)
}

#[test]
fn smoothing_ignored_targets_and_odd_vocabularies_against_the_definition() {
    for vocabulary in [4, 5, 7, 9] {
        for smoothing in [0.0, 0.1, 1.0] {
            for ignored in [None, Some(-100), Some(1)] {
                let mut targets = vec![0, 3, 1, 2, 1, vocabulary as i64 - 1];
                if ignored == Some(-100) {
                    targets[1] = -100;
                    targets[4] = -100;
                }
                let logits = fixed([6, vocabulary], 9, DType::F64, &device()).mul_scalar(4.0);
                let values: Vec<f64> = logits.clone().into_data().iter().collect();
                let (loss, slopes) = by_hand(&values, &targets, vocabulary, smoothing, ignored);
                let targets = Tensor::from_data(targets.as_slice(), (&device(), DType::I64));
                let both = [KernelChoice::Fused, KernelChoice::Twin];
                for (ranks, kernels) in [1, 2, 3, 4].into_iter().flat_map(|n| both.map(|k| (n, k)))
                {
                    let options = CrossEntropyOptions {
                        vocabulary,
                        ignore_index: ignored,
                        label_smoothing: smoothing,
                        kernels,
                    };
                    let (got, gradient) = run(ranks, &logits, &targets, options);
                    let what = format!(
                        "V {vocabulary}, {smoothing}, {ignored:?}, {ranks} ranks, {kernels:?}"
                    );
                    assert!(
                        (got - loss).abs() < 1e-13 * loss.abs().max(1.0),
                        "{what}: {got} {loss}"
                    );
                    let error = relative(&gradient, &slopes);
                    assert!(error < 1e-12, "{what}: {error:e}\n{gradient:?}\n{slopes:?}");
                }
            }
        }
    }
}

#[test]
fn without_a_target_the_loss_is_zero_and_so_is_its_gradient() {
    let logits = fixed([3, 5], 4, DType::F32, &device());
    let targets = Tensor::from_data([-1, -1, -1], &device());
    let options = CrossEntropyOptions {
        ignore_index: Some(-1),
        label_smoothing: 0.1,
        ..CrossEntropyOptions::new(5)
    };
    for ranks in [1, 2, 4] {
        let (loss, gradient) = run(ranks, &logits, &targets, options);
        assert_eq!(loss, 0.0);
        assert!(gradient.iter().all(|slope| *slope == 0.0), "{gradient:?}");
    }
}

#[test]
fn more_ranks_than_tokens() {
    let logits = fixed([2, 3], 4, DType::F64, &device());
    let values: Vec<f64> = logits.clone().into_data().iter().collect();
    let targets = Tensor::from_data([2, 0], (&device(), DType::I64));
    for (ranks, smoothing) in [(4, 0.0), (5, 0.2)] {
        let options = CrossEntropyOptions {
            label_smoothing: smoothing,
            ..CrossEntropyOptions::new(3)
        };
        let (loss, slopes) = by_hand(&values, &[2, 0], 3, smoothing, None);
        let (got, gradient) = run(ranks, &logits, &targets, options);
        assert!((got - loss).abs() < 1e-13);
        assert!(relative(&gradient, &slopes) < 1e-12);
    }
}

#[test]
fn sixteen_bit_logits_are_summed_in_f32() {
    let logits = fixed([4, 6], 5, DType::BF16, &device());
    let values: Vec<f64> = logits.clone().into_data().iter().collect();
    let targets = Tensor::from_data([5, 0, 1, 2], (&device(), DType::I64));
    let (loss, slopes) = by_hand(&values, &[5, 0, 1, 2], 6, 0.0, None);
    let (got, gradient) = run(2, &logits, &targets, CrossEntropyOptions::new(6));
    assert!((got - loss).abs() < 0.01, "{got} {loss}");
    assert!(relative(&gradient, &slopes) < 0.01);
}

#[test]
fn many_rows_of_f16_do_not_overflow() {
    let rows = 70_000;
    let logits = fixed([rows, 4], 5, DType::F16, &device());
    let targets = vec![3i64; rows];
    let values: Vec<f64> = logits.clone().into_data().iter().collect();
    let (loss, slopes) = by_hand(&values, &targets, 4, 0.0, None);
    let targets = Tensor::from_data(targets.as_slice(), (&device(), DType::I64));
    let (got, gradient) = run(2, &logits, &targets, CrossEntropyOptions::new(4));
    assert!((got - loss).abs() < 1e-4, "{got} {loss}");
    // One over the rows is near the smallest number of f16.
    let scale = slopes.iter().fold(0.0f64, |m, s| m.max(s.abs()));
    let pairs = gradient.iter().zip(&slopes);
    assert!(pairs.fold(0.0f64, |m, (a, b)| m.max((a - b).abs())) < 0.01 * scale);
}

#[test]
fn an_embedding_that_is_also_the_head() {
    use burn::module::Module;
    use burn::nn::{Embedding, EmbeddingConfig};
    use burn_dist::tensor_parallel::VocabParallelEmbedding;
    #[derive(Module, Debug)]
    struct Tied {
        embedding: Embedding,
    }
    let dense = Tied {
        embedding: EmbeddingConfig::new(7, 6).init(&device()),
    };
    let tokens = || Tensor::<2, Int>::from_data([[0, 1, 2, 3], [6, 6, 4, 5]], &device());
    let targets = || Tensor::<1, Int>::from_data([1, 2, 3, 0, 6, 4, 5, 0], &device());
    compare(
        &dense,
        |dense, _| {
            let x = dense.embedding.forward(tokens()).tanh().reshape([8, 6]);
            let logits = x.matmul(dense.embedding.weight.val().transpose());
            CrossEntropyLossConfig::new()
                .init(&device())
                .forward(logits, targets())
        },
        |dense, parallel| VocabParallelEmbedding::from_dense(&dense.embedding, parallel),
        |split, _| {
            let logits = split.logits(split.forward(tokens())?.tanh())?;
            let [b, s, columns] = logits.dims();
            let logits = logits.reshape([b * s, columns]);
            let group = split.parallel().group();
            vocab_parallel_cross_entropy(logits, targets(), &CrossEntropyOptions::new(7), group)
        },
        |split| {
            Ok(Tied {
                embedding: split.to_dense()?,
            })
        },
    );
}

#[test]
fn three_reductions_and_nothing_backward() {
    let results = run_group(2, |group| {
        let logits = fixed([3, 4], group.index() as u64, DType::F32, &device()).require_grad();
        let targets = Tensor::from_data([7, 0, 3], &device());
        let before = group.traffic();
        let options = CrossEntropyOptions::new(8);
        let losses = vocab_parallel_token_losses(logits, targets, &options, &group)?;
        drop(losses.sum().backward());
        let after = group.traffic();
        Ok((
            after.calls - before.calls,
            after.total_sent() - before.total_sent(),
        ))
    });
    for result in results {
        // Three rows of the largest, the sum and the target's, in two calls: 2S(n-1)/n.
        let (calls, sent) = result.expect("no fault");
        assert_eq!((calls, sent), (2, (3 + 6) * 4));
    }
}

#[test]
fn a_head_and_its_loss_are_dense_ones() {
    let dense = LinearConfig::new(6, 5).init(&device());
    let hidden = |dtype| fixed([2, 4, 6], 3, dtype, &device());
    let targets = || Tensor::<1, Int>::from_data([0, 4, 2, 2, 1, 3, 4, 4], &device());
    compare(
        &dense,
        |dense, dtype| {
            let logits = dense.forward(hidden(dtype)).reshape([8, 5]);
            let loss = CrossEntropyLossConfig::new().init(&device());
            loss.forward(logits, targets())
        },
        |dense, parallel| ColumnParallelLinear::from_dense_vocabulary(dense, parallel),
        |split, dtype| -> Result<Tensor<1>> {
            let parallel = split.parallel();
            let logits = split.forward(parallel.split_sequence(hidden(dtype))?)?;
            let [b, s, columns] = logits.dims();
            let logits = logits.reshape([b * s, columns]);
            let options = CrossEntropyOptions::new(5);
            vocab_parallel_cross_entropy(logits, targets(), &options, parallel.group())
        },
        ColumnParallelLinear::to_dense,
    );
}

#[test]
fn what_cannot_be_right_is_refused_before_anything_is_sent() {
    let results = run_group(2, |group| {
        let loss = |columns, targets: [i64; 2], smoothing| {
            let logits = Tensor::<2>::zeros([2, columns], &device());
            let options = CrossEntropyOptions {
                label_smoothing: smoothing,
                ..CrossEntropyOptions::new(5)
            };
            let targets = Tensor::from_data(targets, (&device(), DType::I64));
            let refused = vocab_parallel_cross_entropy(logits, targets, &options, &group);
            refused.expect_err("refused").to_string()
        };
        assert!(loss(5, [0, 1], 0.0).contains("3 columns"));
        assert!(loss(3, [0, 5], 0.0).contains("token 5 is outside a vocabulary of 5"));
        assert!(loss(3, [0, -100], 0.0).contains("token -100"));
        assert!(loss(3, [0, 1], 1.5).contains("smoothing 1.5"));
        group.barrier()?;
        Ok(group.traffic().total_sent())
    });
    for result in results {
        assert_eq!(result.expect("the group is still good"), 0);
    }
}
