//! Dropout on whole and on split activations.

use burn::module::Module;
use burn::nn::DropoutConfig;
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig};
use burn::tensor::{DType, Device, Tensor};
use burn_dist::random::RandomStream;
use burn_dist::tensor_parallel::{ParallelEncoder, SplitDropout, TensorParallel};
use tests::run_group;

use super::{cast, close, fixed, settled, train};

fn device() -> Device {
    Device::flex().autodiff()
}

fn dense() -> TransformerEncoder {
    let config = TransformerEncoderConfig::new(12, 20, 4, 2).with_dropout(0.3);
    settled(&config.init(&device()))
}

/// Trains with dropout; the masks of a step are those of its number.
fn run(dense: &TransformerEncoder, ranks: usize, sequence: bool) -> Vec<super::Outcome> {
    let results = run_group(ranks, |group| {
        let stream = RandomStream::new(5);
        let parallel = TensorParallel::new(&group)
            .sequence_parallel(sequence)
            .random(&stream);
        let module = ParallelEncoder::from_dense(&cast(dense, DType::F64), &parallel)?;
        let step = std::cell::Cell::new(0);
        train(
            module,
            |module| {
                stream.begin(step.get(), 0);
                step.set(step.get() + 1);
                let x = fixed([3, 8, 12], 2, DType::F64, &device());
                let y = module.forward(x, None, None)?;
                let weight = fixed([3, 8, 12], 3, DType::F64, &device());
                Ok((y * weight).mean())
            },
            ParallelEncoder::to_dense,
        )
    });
    results.into_iter().map(|r| r.expect("no fault")).collect()
}

#[test]
fn with_dropout_many_ranks_train_as_one_does() {
    let dense = dense();
    let one = run(&dense, 1, false);
    for (ranks, sequence) in [(2, false), (2, true), (4, false), (4, true)] {
        for (rank, many) in run(&dense, ranks, sequence).iter().enumerate() {
            close(&format!("rank {rank} of {ranks}"), many, &one[0], 1e-12);
        }
    }
    // Something was dropped.
    let losses = &one[0].losses;
    assert!(losses.windows(2).all(|pair| pair[0] != pair[1]));
}

#[test]
fn masks_are_equal_where_activations_are_whole_and_differ_where_they_are_split() {
    let results = run_group(4, |group| {
        let stream = RandomStream::new(5);
        let parallel = TensorParallel::new(&group).random(&stream);
        let dropout = DropoutConfig::new(0.5).init();
        let ones = Tensor::<3>::ones([2, 6, 8], &device());
        let whole = SplitDropout::whole(&dropout, &parallel)?;
        let split = SplitDropout::split(&dropout, &parallel, 1)?;
        let bits = |tensor: Tensor<3>| tensor.into_data().as_bytes().to_vec();
        let here = stream.position();
        let (first, second) = (whole.forward(ones.clone()), split.forward(ones.clone()));
        // Computed again, as activation recompute does.
        stream.rewind(here);
        let again = (whole.forward(ones.clone()), split.forward(ones.clone()));
        assert_eq!(bits(first.clone()), bits(again.0));
        assert_eq!(bits(second.clone()), bits(again.1));
        // Other replicas drop other elements; validation and frozen layers none.
        let replica = parallel.clone().random(&stream.of_replica(1));
        let other = SplitDropout::whole(&dropout, &replica)?.forward(ones.clone());
        assert_ne!(bits(first.clone()), bits(other));
        let valid = ones.clone().inner();
        assert_eq!(bits(whole.forward(valid.clone())), bits(valid));
        assert_eq!(
            bits(whole.clone().freeze().forward(ones.clone())),
            bits(ones)
        );
        Ok((bits(first), bits(second)))
    });
    let results: Vec<_> = results.into_iter().map(|r| r.expect("no fault")).collect();
    for rank in 1..4 {
        assert_eq!(results[0].0, results[rank].0);
        for other in 0..rank {
            assert_ne!(results[other].1, results[rank].1);
        }
    }
}

#[test]
fn dropout_without_a_stream_is_refused() {
    let dense = dense();
    let results = run_group(2, |group| {
        let refused = ParallelEncoder::from_dense(&dense, &group).expect_err("refused");
        let text = refused.to_string();
        assert!(
            text.contains("0.3") && text.contains("RandomStream"),
            "{text}"
        );
        Ok(())
    });
    for result in results {
        result.expect("no fault");
    }
}
