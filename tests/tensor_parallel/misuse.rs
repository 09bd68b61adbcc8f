//! What cannot be split, and ranks that do not do the same.

use burn::module::Module;
use burn::nn::activation::{ActivationConfig, PReluConfig, SwiGluConfig};
use burn::nn::attention::MultiHeadAttentionConfig;
use burn::nn::transformer::PositionWiseFeedForwardConfig;
use burn::nn::{EmbeddingConfig, LinearConfig};
use burn::tensor::{DType, Device, Int, Tensor};
use burn_dist::tensor_parallel::{
    ColumnParallelLinear, ParallelAttention, ParallelAttentionConfig, ParallelEncoder,
    ParallelFeedForward, RowParallelLinear, TensorParallel, VocabParallelEmbedding,
};
use burn_dist::{DistError, ProcessGroup, Result};
use tests::run_group;

use super::fixed;

fn device() -> Device {
    Device::flex().autodiff()
}

/// Runs on every rank of a group that must be good, and unused, afterwards.
fn refused(
    ranks: usize,
    f: impl Fn(&ProcessGroup) -> Vec<(Result<()>, &'static str)> + Send + Sync,
) {
    let results = run_group(ranks, |group| {
        for (refusal, words) in f(&group) {
            let text = refusal.expect_err(words).to_string();
            assert!(text.contains(words), "{text}: no {words:?}");
        }
        group.barrier()?;
        Ok(group.traffic().total_sent())
    });
    for result in results {
        assert_eq!(result.expect("the group is still good"), 0);
    }
}

#[test]
fn widths_that_the_ranks_do_not_divide() {
    refused(3, |group| {
        let linear = LinearConfig::new(8, 10).init(&device());
        let attention = |heads| {
            let config = MultiHeadAttentionConfig::new(12, heads).with_dropout(0.0);
            ParallelAttention::from_dense(&config.init(&device()), group).map(drop)
        };
        let feed_forward = PositionWiseFeedForwardConfig::new(9, 16)
            .with_dropout(0.0)
            .init(&device());
        let grouped = ParallelAttentionConfig::new(12, 6).with_dropout(0.0);
        let grouped = |heads| {
            let config = grouped.clone().with_n_key_value_heads(Some(heads));
            config.init(group, &device()).map(drop)
        };
        vec![
            (
                ColumnParallelLinear::from_dense(&linear, group).map(drop),
                "output features is 10, not a multiple of the 3 ranks",
            ),
            (
                RowParallelLinear::from_dense(&linear, group).map(drop),
                "input features is 8",
            ),
            (attention(4), "number of heads is 4"),
            (
                ParallelFeedForward::from_dense(&feed_forward, group).map(drop),
                "output features is 16",
            ),
            (grouped(2), "key and value heads is 2"),
            (
                grouped(4),
                "6 heads of 2 features and 4 heads of key and value",
            ),
            (grouped(0), "0 heads of key and value"),
        ]
    });
}

#[test]
fn layers_that_do_not_go_together() {
    refused(2, |group| {
        let linear = |i, bias| LinearConfig::new(i, 8).with_bias(bias).init(&device());
        let sections = |a, b| ColumnParallelLinear::from_dense_sections(&[&a, &b], group).map(drop);
        let attention = MultiHeadAttentionConfig::new(8, 2)
            .with_dropout(0.0)
            .with_key_bias(false)
            .init(&device());
        let activation = |activation| {
            let dense = PositionWiseFeedForwardConfig::new(8, 8)
                .with_dropout(0.0)
                .with_activation(activation)
                .init(&device());
            ParallelFeedForward::from_dense(&dense, group).map(drop)
        };
        vec![
            (
                sections(linear(8, true), linear(8, false)),
                "bias: true and false",
            ),
            (
                sections(linear(8, true), linear(6, true)),
                "8 and 6 input features",
            ),
            (
                ParallelAttention::from_dense(&attention, group).map(drop),
                "bias: true and false",
            ),
            (
                activation(ActivationConfig::PRelu(PReluConfig::new())),
                "PRelu",
            ),
            (
                activation(ActivationConfig::SwiGlu(SwiGluConfig::new(8, 8))),
                "SwiGlu",
            ),
        ]
    });
}

#[test]
fn tokens_outside_the_vocabulary_and_sequences_that_cannot_be_split() {
    refused(2, |group| {
        let parallel = TensorParallel::new(group).sequence_parallel(true);
        let dense = EmbeddingConfig::new(5, 8).init(&device());
        let embedding = VocabParallelEmbedding::from_dense(&dense, &parallel).expect("fits");
        let forward = |tokens: [i64; 4]| {
            let tokens = Tensor::<1, Int>::from_data(tokens, &device()).reshape([1, 4]);
            embedding.forward(tokens).map(drop)
        };
        let odd = Tensor::<2, Int>::zeros([2, 3], &device());
        let config = burn::nn::transformer::TransformerEncoderConfig::new(8, 8, 2, 1);
        let encoder = config.with_dropout(0.0).init(&device());
        let encoder = ParallelEncoder::from_dense(&encoder, &parallel).expect("fits");
        let input = fixed([2, 7, 8], 1, DType::F32, &device());
        vec![
            (
                forward([0, 1, 2, 5]),
                "token 5 is outside a vocabulary of 5",
            ),
            (forward([0, 1, -1, 2]), "token -1"),
            (
                embedding.forward(odd).map(drop),
                "dim 1 of shape [2, 3, 8] is 3, not a multiple",
            ),
            (
                encoder.forward(input, None, None).map(drop),
                "dim 1 of shape [2, 7, 8] is 7, not a multiple of the group's 2 ranks",
            ),
        ]
    });
}

#[test]
fn inputs_that_do_not_fit() {
    refused(2, |group| {
        let parallel = TensorParallel::new(group).sequence_parallel(true);
        let dense = LinearConfig::new(8, 8).init(&device());
        let column = ColumnParallelLinear::from_dense(&dense, &parallel).expect("fits");
        let row = RowParallelLinear::from_dense(&dense, &parallel).expect("fits");
        let [flat, narrow] = [
            fixed([8], 1, DType::F32, &device()),
            fixed([4], 1, DType::F32, &device()),
        ];
        let wide = fixed([2, 2, 6], 1, DType::F32, &device());
        vec![
            (
                column.forward(flat).map(drop),
                "shape [8] for a weight of 8 rows",
            ),
            (
                row.forward(narrow).map(drop),
                "shape [4] for a weight of 4 rows",
            ),
            (
                column.forward(wide.clone()).map(drop),
                "[2, 2, 6] for a weight of 8 rows",
            ),
            (row.forward(wide).map(drop), "bring [.., tokens, 4]"),
        ]
    });
}

#[test]
fn one_parameter_that_lies_in_two_ways() {
    #[derive(Module, Debug)]
    struct Tied {
        tokens: VocabParallelEmbedding,
        head: ColumnParallelLinear,
    }
    refused(2, |group| {
        let embedding = EmbeddingConfig::new(8, 8).init(&device());
        let mut head = LinearConfig::new(8, 8).with_bias(false).init(&device());
        head.weight = embedding.weight.clone();
        let model = Tied {
            tokens: VocabParallelEmbedding::from_dense(&embedding, group).expect("fits"),
            head: ColumnParallelLinear::from_dense(&head, group).expect("fits"),
        };
        let refused = burn_dist::data_parallel::ParameterTable::of(&model).map(drop);
        vec![(refused, "shard(1) over tp [0, 1] as head.weight")]
    });
}

#[test]
fn a_declaration_of_a_field_that_is_not_there() {
    use burn_dist::placement::LayerPlacement;
    #[derive(Module, Debug)]
    struct Misspelt {
        placement: LayerPlacement,
        linear: burn::nn::Linear,
    }
    refused(2, |group| {
        let axis = burn_dist::mesh::MeshAxis::Tp;
        let model = Misspelt {
            placement: LayerPlacement::new(axis, group).shard("linaer", 1),
            linear: LinearConfig::new(8, 8).init(&device()),
        };
        let refused = burn_dist::data_parallel::ParameterTable::of(&model).map(drop);
        vec![(refused, "linaer is declared")]
    });
}

#[test]
fn ranks_with_other_batches_get_an_error_that_names_both() {
    let dense = LinearConfig::new(8, 8).init(&device());
    let results = run_group(2, |group| {
        let layer = RowParallelLinear::from_dense(&dense, &group)?;
        let batch = 2 + group.index();
        layer
            .forward(fixed([batch, 3, 4], 1, DType::F32, &device()))
            .map(drop)
    });
    for result in results {
        let error = result.expect_err("shapes differ");
        let text = error.to_string();
        assert!(matches!(error, DistError::Mismatch { .. }), "{text}");
        assert!(
            text.contains("[2, 3, 8]") && text.contains("[3, 3, 8]"),
            "{text}"
        );
    }
}

#[test]
fn a_rank_that_ends_before_its_backward_pass_is_named() {
    let dense = LinearConfig::new(8, 8).init(&device());
    for overlap in [true, false] {
        let results = run_group(2, |group| {
            let parallel = TensorParallel::new(&group).overlap(overlap);
            let layer = ColumnParallelLinear::from_dense(&dense, &parallel)?;
            let x = fixed([2, 3, 8], 1, DType::F32, &device()).require_grad();
            let loss = layer.forward(x.clone())?.sum();
            if group.index() == 1 {
                group.abort(DistError::config("rank 1 gave up", "nothing"));
                return Ok(true);
            }
            let gradients = loss.backward();
            let gradient = x.grad(&gradients).expect("tracked").into_data();
            // Never taken for good, and the next call says why.
            let lost = gradient.iter::<f64>().all(|value| value.is_nan());
            let text = group.check().expect_err("failed").to_string();
            assert!(text.contains("rank 1 gave up"), "{text}");
            Ok(lost && layer.forward(x).is_err())
        });
        for result in results {
            assert!(result.expect("reports through check"), "overlap {overlap}");
        }
    }
}
