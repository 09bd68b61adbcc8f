//! The audit passes what is right and names what is not.

use burn::module::Module;
use burn::nn::transformer::TransformerEncoderConfig;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::module::linear;
use burn::tensor::{DType, Device, Tensor};
use burn_dist::collectives::reduce_from_region;
use burn_dist::tensor_parallel::{
    AuditReport, ColumnParallelLinear, GradientAudit, ParallelEncoder, RowParallelLinear,
    SequenceParallel, TensorParallel,
};
use burn_dist::{ProcessGroup, Result};
use tests::run_group;

use super::{fixed, settled};

fn device() -> Device {
    Device::flex().autodiff()
}

fn input() -> Tensor<3> {
    fixed([2, 4, 8], 1, DType::F32, &device())
}

fn loss_of(output: Tensor<3>) -> Tensor<1> {
    let weight = fixed(output.dims(), 7, DType::F32, &output.device());
    (output.clone() * weight + output.powi_scalar(2)).mean()
}

/// What every rank is told, the same on all.
fn on_ranks<T: Send + 'static>(
    ranks: usize,
    f: impl Fn(ProcessGroup) -> Result<T> + Send + Sync,
) -> Vec<T> {
    let results = run_group(ranks, f);
    results.into_iter().map(|r| r.expect("no fault")).collect()
}

#[test]
fn right_models_pass() {
    let config = TransformerEncoderConfig::new(8, 12, 4, 1).with_dropout(0.0);
    let dense = settled(&config.init(&device()));
    for ranks in [1, 2, 4] {
        for sequence in [false, true] {
            let reports = on_ranks(ranks, |group| {
                let parallel = TensorParallel::new(&group).sequence_parallel(sequence);
                let model = ParallelEncoder::from_dense(&settled(&dense), &parallel)?;
                GradientAudit::new(&group).run(&model, |model| {
                    Ok(loss_of(model.forward(input(), None, None)?))
                })
            });
            let report: &AuditReport = &reports[0];
            let checked = report.parameters.iter().filter(|p| p.error.is_some());
            assert!(checked.count() >= 9, "{report}");
            let text = report.to_string();
            let summed = sequence && ranks > 1;
            let norm = text
                .lines()
                .find(|line| line.contains("norm_1.layer.gamma"));
            let norm = norm.expect("listed");
            assert_eq!(norm.contains("sum over tp"), summed, "{text}");
            let weight = "query_key_value.weight [8, ";
            assert!(
                text.contains(weight) && text.contains("shard(1) over tp"),
                "{text}"
            );
        }
    }
}

#[derive(Module, Debug)]
struct Norms {
    norm: SequenceParallel<LayerNorm>,
    plain: LayerNorm,
    up: ColumnParallelLinear,
    down: RowParallelLinear,
    #[module(skip)]
    parallel: TensorParallel,
}

impl Norms {
    fn init(parallel: &TensorParallel) -> Result<Self> {
        let norm = || LayerNormConfig::new(8).init(&device());
        let linear = |i, o| settled(&LinearConfig::new(i, o).init(&device()));
        Ok(Self {
            norm: SequenceParallel::new(norm(), parallel),
            plain: norm(),
            up: ColumnParallelLinear::from_dense(&linear(8, 8), parallel)?,
            down: RowParallelLinear::from_dense(&linear(8, 8), parallel)?,
            parallel: parallel.clone(),
        })
    }
}

fn refusal(
    sequence: bool,
    loss: impl Fn(&Norms) -> Result<Tensor<1>> + Send + Sync,
) -> Vec<String> {
    on_ranks(2, |group| {
        let parallel = TensorParallel::new(&group).sequence_parallel(sequence);
        let model = Norms::init(&parallel)?;
        let refused = GradientAudit::new(&group).run(&model, |model| loss(model));
        let text = match refused {
            Ok(report) => format!("passed: {report}"),
            Err(error) => error.to_string(),
        };
        group.barrier()?;
        Ok(text)
    })
}

#[test]
fn a_plain_norm_where_tokens_are_split_lacks_a_reduction() {
    for text in refusal(true, |model| {
        let x = model.parallel.split_sequence(input())?;
        let y = model
            .down
            .forward(model.up.forward(model.plain.forward(x))?)?;
        Ok(loss_of(model.parallel.join_sequence(y)?))
    }) {
        assert!(
            text.contains("missing") && text.contains("plain.gamma"),
            "{text}"
        );
        assert!(text.contains("SequenceParallel"), "{text}");
    }
}

#[test]
fn a_sequence_parallel_norm_where_tokens_are_whole_is_reduced_twice() {
    for text in refusal(true, |model| {
        let x = model.parallel.split_sequence(input())?;
        let y = model.down.forward(model.up.forward(x)?)?;
        Ok(loss_of(
            model.norm.forward(model.parallel.join_sequence(y)?)?,
        ))
    }) {
        assert!(text.contains("norm.layer.gamma"), "{text}");
        assert!(text.contains("once too often"), "{text}");
    }
}

#[test]
fn a_product_with_a_part_whose_input_gradient_nobody_adds_up_is_found() {
    for text in refusal(false, |model| {
        // A hand-made column layer without its all_reduce: what is before it learns from one part only.
        let x = model.plain.forward(input());
        let hidden = linear(x, model.up.weight.val(), None);
        let y = linear(hidden, model.down.weight.val(), None);
        Ok(loss_of(reduce_from_region(
            y,
            &model.parallel.group().clone(),
        )?))
    }) {
        assert!(
            text.contains("plain.gamma") && text.contains("missing"),
            "{text}"
        );
    }
}

#[test]
fn and_where_only_parts_are_before_it() {
    use burn::nn::EmbeddingConfig;
    use burn_dist::tensor_parallel::VocabParallelEmbedding;
    #[derive(Module, Debug)]
    struct Parts {
        embedding: VocabParallelEmbedding,
        up: ColumnParallelLinear,
        down: RowParallelLinear,
    }
    for (ranks, width) in [(2, 8), (2, 32), (4, 32), (4, 128)] {
        for right in [true, false] {
            let texts = on_ranks(ranks, |group| {
                let linear =
                    |i, o| settled(&LinearConfig::new(i, o).with_bias(false).init(&device()));
                let embedding = settled(&EmbeddingConfig::new(7, width).init(&device()));
                let model = Parts {
                    embedding: VocabParallelEmbedding::from_dense(&embedding, &group)?,
                    up: ColumnParallelLinear::from_dense(&linear(width, width), &group)?,
                    down: RowParallelLinear::from_dense(&linear(width, width), &group)?,
                };
                let tokens = || {
                    burn::tensor::Tensor::<2, burn::tensor::Int>::from_data(
                        [[0, 1, 2, 3], [6, 5, 4, 0]],
                        &device(),
                    )
                };
                let audited = GradientAudit::new(&group).run(&model, |model| {
                    let x = model.embedding.forward(tokens())?;
                    let hidden = match right {
                        true => model.up.forward(x)?,
                        false => linear_of(x, &model.up),
                    };
                    Ok(loss_of(
                        model.down.forward(burn::tensor::activation::gelu(hidden))?,
                    ))
                });
                Ok(match audited {
                    Ok(report) => format!("passed: {report}"),
                    Err(error) => error.to_string(),
                })
            });
            for text in texts {
                assert_eq!(text.starts_with("passed"), right, "{ranks} {width}: {text}");
                assert!(right || text.contains("embedding.weight"), "{text}");
            }
        }
    }
}

/// A column layer without its collective.
fn linear_of(x: Tensor<3>, layer: &ColumnParallelLinear) -> Tensor<3> {
    linear(x, layer.weight.val(), None)
}

#[test]
fn a_loss_that_hides_everything_or_is_too_rough_is_refused() {
    for text in refusal(false, |model| {
        let y = model.down.forward(model.up.forward(input())?)?;
        Ok(loss_of(y) + 1e9)
    }) {
        assert!(text.contains("by more than its rounding"), "{text}");
    }
    for text in refusal(false, |model| {
        let y = model.down.forward(model.up.forward(input())?)?;
        Ok(loss_of(y).cast(DType::BF16))
    }) {
        assert!(text.contains("too rough"), "{text}");
    }
    for text in refusal(false, |model| {
        let y = model.down.forward(model.up.forward(input())?)?;
        Ok((y.clone() - y).sqrt().mean() + 1.0)
    }) {
        assert!(text.contains("not finite"), "{text}");
    }
}

#[test]
fn a_loss_that_is_not_repeatable_is_refused() {
    let count = std::sync::atomic::AtomicU64::new(0);
    for text in refusal(false, |model| {
        let noise = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) as f64;
        let y = model.down.forward(model.up.forward(input())?)?;
        Ok(loss_of(y) + noise)
    }) {
        assert!(text.contains("without dropout"), "{text}");
    }
}

#[test]
fn nested_regions_and_groups_over_parts_are_refused_by_what_is_declared() {
    #[derive(Module, Debug)]
    struct Nested {
        inner: SequenceParallel<LayerNorm>,
        placement: burn_dist::placement::LayerPlacement,
    }
    on_ranks(2, |group| {
        let parallel = TensorParallel::new(&group).sequence_parallel(true);
        let norm = LayerNormConfig::new(8).init(&device());
        let axis = burn_dist::mesh::MeshAxis::Tp;
        let nested = Nested {
            inner: SequenceParallel::new(norm, &parallel),
            placement: burn_dist::placement::LayerPlacement::new(axis, &group).summed("inner"),
        };
        let refused = GradientAudit::new(&group).run(&nested, |nested| {
            Ok(loss_of(nested.inner.forward(input())?))
        });
        let text = refused.expect_err("refused").to_string();
        assert!(
            text.contains("inner.layer.gamma is declared twice"),
            "{text}"
        );

        let dense: Linear = LinearConfig::new(8, 8).init(&device());
        let model = ColumnParallelLinear::from_dense(&dense, &group)?.gather_output(true);
        let audit = GradientAudit::new(&group).data_parallel(&group);
        let refused = audit.run(&model, |model| Ok(loss_of(model.forward(input())?)));
        let text = refused.expect_err("refused").to_string();
        assert!(
            text.contains("weight is shard(1)") && text.contains("[0, 1]"),
            "{text}"
        );
        group.barrier()
    });
}
