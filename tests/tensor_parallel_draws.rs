//! Layers drawn in parts have the values of dense ones drawn whole from the same seed. In a program of its
//! own: Burn's generator is one per process.

use std::sync::Mutex;

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::attention::MultiHeadAttentionConfig;
use burn::nn::transformer::{PositionWiseFeedForwardConfig, TransformerEncoderConfig};
use burn::nn::{EmbeddingConfig, Initializer, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor};
use burn_dist::tensor_parallel::{
    ColumnParallelLinear, ColumnParallelLinearConfig, GatedFeedForwardConfig, ParallelAttention,
    ParallelAttentionConfig, ParallelEncoder, ParallelFeedForward, ParallelFeedForwardConfig,
    RowParallelLinear, RowParallelLinearConfig, TensorParallel, VocabParallelEmbedding,
    VocabParallelEmbeddingConfig,
};
use burn_dist::{ProcessGroup, Result};
use tests::run_group;

/// Whoever draws holds it.
static GENERATOR: Mutex<()> = Mutex::new(());

struct Bits(Vec<Vec<u8>>);

impl ModuleVisitor for Bits {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        assert!(param.is_require_grad() || !param.lazy_device().is_autodiff());
        let values = param.val().inner().into_data();
        self.0.push(values.as_bytes().to_vec());
    }
}

/// The bits of a module's parameters, drawn as they are visited, and of the number drawn next.
fn drawn<M: Module>(make: impl FnOnce(&Device) -> M) -> Vec<Vec<u8>> {
    let _held = GENERATOR.lock().expect("no panic under this lock");
    let device = Device::flex().autodiff();
    device.seed(17);
    let module = make(&device);
    let mut bits = Bits(Vec::new());
    module.visit(&mut bits);
    let next = Tensor::<1>::random([4], Distribution::Default, &device);
    bits.0.push(next.into_data().as_bytes().to_vec());
    bits.0
}

fn same<D: Module + Sync, P: Module>(
    dense: impl Fn(&Device) -> D + Send + Sync,
    split: impl Fn(&TensorParallel, &D) -> P + Send + Sync,
    config: impl Fn(&TensorParallel, &Device) -> Result<P> + Send + Sync,
) {
    for ranks in [1, 2, 4] {
        let results = run_group(ranks, |group: ProcessGroup| {
            let parallel = TensorParallel::new(&group);
            let expected = drawn(|device| {
                let dense = dense(device);
                dense.visit(&mut Bits(Vec::new()));
                split(&parallel, &dense)
            });
            let got = drawn(|device| config(&parallel, device).expect("it fits"));
            Ok((got, expected))
        });
        for (rank, result) in results.into_iter().enumerate() {
            let (got, expected) = result.expect("no fault");
            assert_eq!(got.len(), expected.len());
            assert!(got == expected, "rank {rank} of {ranks}");
        }
    }
}

fn initializers() -> [Initializer; 5] {
    [
        Initializer::KaimingUniform {
            gain: 1.0 / 3f64.sqrt(),
            fan_out_only: false,
        },
        Initializer::KaimingNormal {
            gain: 2.0,
            fan_out_only: true,
        },
        Initializer::XavierNormal { gain: 1.0 },
        Initializer::Normal {
            mean: 0.5,
            std: 2.0,
        },
        Initializer::Constant { value: 0.25 },
    ]
}

#[test]
fn linear_layers() {
    for initializer in initializers() {
        for bias in [true, false] {
            // More elements than are drawn at a time.
            let linear = |device: &Device| {
                LinearConfig::new(300, 512)
                    .with_bias(bias)
                    .with_initializer(initializer.clone())
                    .init(device)
            };
            same(
                linear,
                |parallel, dense| ColumnParallelLinear::from_dense(dense, parallel).expect("fits"),
                |parallel, device| {
                    ColumnParallelLinearConfig::new(300, vec![512])
                        .with_bias(bias)
                        .with_initializer(initializer.clone())
                        .init(parallel, device)
                },
            );
            same(
                linear,
                |parallel, dense| RowParallelLinear::from_dense(dense, parallel).expect("fits"),
                |parallel, device| {
                    RowParallelLinearConfig::new(300, 512)
                        .with_bias(bias)
                        .with_initializer(initializer.clone())
                        .init(parallel, device)
                },
            );
        }
    }
}

#[test]
fn padded_vocabularies() {
    same(
        |device| LinearConfig::new(6, 7).init(device),
        |parallel, dense| {
            ColumnParallelLinear::from_dense_vocabulary(dense, parallel).expect("fits")
        },
        |parallel, device| {
            ColumnParallelLinearConfig::new(6, vec![7])
                .with_pad(true)
                .init(parallel, device)
        },
    );
    same(
        |device| EmbeddingConfig::new(1001, 90).init(device),
        |parallel, dense| VocabParallelEmbedding::from_dense(dense, parallel).expect("fits"),
        |parallel, device| VocabParallelEmbeddingConfig::new(1001, 90).init(parallel, device),
    );
}

#[test]
fn attention_and_feed_forward() {
    same(
        |device| {
            MultiHeadAttentionConfig::new(24, 4)
                .with_dropout(0.0)
                .init(device)
        },
        |parallel, dense| ParallelAttention::from_dense(dense, parallel).expect("fits"),
        |parallel, device| {
            ParallelAttentionConfig::new(24, 4)
                .with_dropout(0.0)
                .init(parallel, device)
        },
    );
    same(
        |device| {
            PositionWiseFeedForwardConfig::new(24, 40)
                .with_dropout(0.0)
                .init(device)
        },
        |parallel, dense| ParallelFeedForward::from_dense(dense, parallel).expect("fits"),
        |parallel, device| {
            ParallelFeedForwardConfig::new(24, 40)
                .with_dropout(0.0)
                .init(parallel, device)
        },
    );
}

#[test]
fn whole_encoders() {
    let config = TransformerEncoderConfig::new(24, 40, 4, 2).with_dropout(0.0);
    same(
        |device| config.init(device),
        |parallel, dense| ParallelEncoder::from_dense(dense, parallel).expect("fits"),
        |parallel, device| ParallelEncoder::init(&config, parallel, device),
    );
}

#[test]
fn a_part_is_drawn_without_holding_the_whole() {
    let results = run_group(4, |group| {
        let _held = GENERATOR.lock().expect("no panic under this lock");
        let config = ColumnParallelLinearConfig::new(2048, vec![2048]).with_bias(false);
        let layer = config.init(&group, &Device::flex())?;
        let whole = (2048 * 2048 * 4) as u64;
        let drawn = allocation_counter::measure(|| drop(layer.weight.val()));
        // The part, its pieces before they are joined, and a block.
        assert!(
            drawn.bytes_max < whole * 6 / 10,
            "{} of {whole}",
            drawn.bytes_max
        );
        Ok(())
    });
    for result in results {
        result.expect("no fault");
    }
}

#[test]
fn grouped_queries_and_gates_are_drawn_as_their_dense_layers() {
    for ranks in [1, 2] {
        let results = run_group(ranks, |group| {
            let parallel = TensorParallel::new(&group);
            let linears = |device: &Device, widths: &[[usize; 2]]| -> Vec<_> {
                let linear = |&[i, o]: &[usize; 2]| LinearConfig::new(i, o).init(device);
                widths.iter().map(linear).collect()
            };
            let widths = [[24, 24], [24, 12], [24, 12], [24, 24]];
            let dense = drawn(|device| linears(device, &widths));
            let mut attention = None;
            drawn(|device| {
                let config = ParallelAttentionConfig::new(24, 4)
                    .with_n_key_value_heads(Some(2))
                    .with_dropout(0.0);
                let made = config.init(&parallel, device).expect("fits");
                attention = Some(made.clone());
                made
            });
            let whole = attention.expect("made").to_dense_linears()?.to_vec();
            let mut bits = Bits(Vec::new());
            whole.visit(&mut bits);
            assert!(bits.0 == dense[..dense.len() - 1]);

            let widths = [[24, 40], [24, 40], [40, 24]];
            let dense = drawn(|device| linears(device, &widths));
            let mut gated = None;
            drawn(|device| {
                let config = GatedFeedForwardConfig::new(24, 40).with_bias(true);
                let made = config.init(&parallel, device).expect("fits");
                gated = Some(made.clone());
                made
            });
            let whole = gated.expect("made").to_dense()?.to_vec();
            let mut bits = Bits(Vec::new());
            whole.visit(&mut bits);
            assert!(bits.0 == dense[..dense.len() - 1]);
            Ok(())
        });
        for result in results {
            result.expect("no fault");
        }
    }
}

#[test]
fn a_bias_that_is_read_first_is_the_same() {
    let results = run_group(1, |group| {
        let config = ColumnParallelLinearConfig::new(5, vec![6, 4]);
        let _held = GENERATOR.lock().expect("no panic under this lock");
        let device = Device::flex();
        device.seed(17);
        let first = config.init(&group, &device)?;
        let (weight, bias) = (first.weight.val(), first.bias.as_ref().expect("one").val());
        device.seed(17);
        let second = config.init(&group, &device)?;
        let late_bias = second.bias.as_ref().expect("one").val();
        assert_eq!(late_bias.into_data(), bias.into_data());
        assert_eq!(second.weight.val().into_data(), weight.into_data());
        Ok(())
    });
    results.into_iter().next().expect("one").expect("no fault");
}

#[test]
fn what_cannot_be_drawn_in_parts_is_refused() {
    let results = run_group(1, |group| {
        let config = RowParallelLinearConfig::new(4, 4)
            .with_initializer(Initializer::Orthogonal { gain: 1.0 });
        let refused = config.init(&group, &Device::flex()).expect_err("refused");
        assert!(refused.to_string().contains("from_dense"), "{refused}");
        Ok(())
    });
    results.into_iter().next().expect("one").expect("no fault");
}
