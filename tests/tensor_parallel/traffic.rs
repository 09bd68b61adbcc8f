//! What a split transformer layer sends, against the published formula.

use burn::nn::transformer::{TransformerEncoderConfig, TransformerEncoderLayer};
use burn::tensor::{DType, Device};
use burn_dist::ProcessGroup;
use burn_dist::communicator::RecordingCommunicator;
use burn_dist::tensor_parallel::{ParallelEncoderLayer, TensorParallel};
use std::sync::Arc;
use tests::run_group;

use super::fixed;

const BATCH: usize = 3;
const SEQ: usize = 8;
const HIDDEN: usize = 16;

/// Elements that all ranks together send for one micro-batch, and the shapes and names of the calls of one.
fn run(ranks: usize, sequence: bool, regather: bool) -> (u64, Vec<(String, Vec<usize>)>) {
    let device = Device::flex().autodiff();
    let config = TransformerEncoderConfig::new(HIDDEN, 20, 4, 1).with_dropout(0.0);
    let dense = TransformerEncoderLayer::new(&config, &device);
    let results = run_group(ranks, |group| {
        let recording = Arc::new(RecordingCommunicator::new(group.communicator().clone()));
        let group = ProcessGroup::new(recording.clone());
        let parallel = TensorParallel::new(&group)
            .sequence_parallel(sequence)
            .regather(regather);
        let layer = ParallelEncoderLayer::from_dense(&dense, &parallel)?;
        let seq = if sequence { SEQ / ranks } else { SEQ };
        let x = fixed([BATCH, seq, HIDDEN], 3, DType::F32, &device).require_grad();
        drop(
            layer
                .forward(x, None, None)?
                .powi_scalar(2)
                .sum()
                .backward(),
        );
        let calls = recording.calls();
        let calls = calls
            .iter()
            .map(|call| (call.operation.name().to_string(), call.shape.clone()));
        Ok((group.traffic().total_sent() / 4, calls.collect::<Vec<_>>()))
    });
    let results: Vec<_> = results.into_iter().map(|r| r.expect("no fault")).collect();
    let sent = results.iter().map(|result| result.0).sum();
    (sent, results[0].1.clone())
}

#[test]
fn eight_times_the_activations_with_and_without_sequence_parallelism() {
    let activations = (BATCH * SEQ * HIDDEN) as u64;
    for ranks in [2, 4] {
        let others = ranks as u64 - 1;
        let (plain, calls) = run(ranks, false, false);
        assert_eq!(plain, 8 * activations * others, "{calls:?}");
        assert_eq!(calls.len(), 4, "{calls:?}");
        assert!(calls.iter().all(|call| call.0 == "all_reduce"));

        // And the two norms' vectors, which every rank holds and sees its tokens of.
        let vectors = 2 * 2 * (2 * HIDDEN as u64) * others;
        let (split, calls) = run(ranks, true, false);
        assert_eq!(split, 8 * activations * others + vectors, "{calls:?}");
        let count = |name: &str| calls.iter().filter(|call| call.0 == name).count();
        let counts = (
            count("all_gather"),
            count("reduce_scatter"),
            count("all_reduce"),
        );
        assert_eq!(counts, (4, 4, 2), "{calls:?}");

        // Two more gathers, which run beside products, for inputs that are not kept.
        let (again, calls) = run(ranks, true, true);
        assert_eq!(again, 10 * activations * others + vectors, "{calls:?}");
    }
}
