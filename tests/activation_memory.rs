//! What a split layer keeps for its backward pass, counted at the allocator, against the formula.

use burn::nn::transformer::{TransformerEncoderConfig, TransformerEncoderLayer};
use burn::tensor::{Device, Tensor};
use burn_dist::random::RandomStream;
use burn_dist::tensor_parallel::{LayerActivations, ParallelEncoderLayer, TensorParallel};
use tests::run_group;

/// Bytes that each rank holds after a forward pass and did not hold before, but for the output.
fn held(layer: LayerActivations) -> Vec<i64> {
    let LayerActivations {
        batch,
        seq,
        hidden,
        heads,
        d_ff,
        ranks,
        sequence_parallel,
        regather,
        dropout,
    } = layer;
    let device = Device::flex().autodiff();
    let config = TransformerEncoderConfig::new(hidden, d_ff, heads, 1)
        .with_dropout(if dropout { 0.1 } else { 0.0 })
        .with_norm_first(true);
    let results = run_group(ranks, |group| {
        let parallel = TensorParallel::new(&group)
            .sequence_parallel(sequence_parallel)
            .regather(regather)
            .random(&RandomStream::new(1));
        let dense = TransformerEncoderLayer::new(&config, &device);
        let split = ParallelEncoderLayer::from_dense(&dense, &parallel)?;
        let seq = if parallel.is_sequence_parallel() {
            seq / ranks
        } else {
            seq
        };
        let x = Tensor::<3>::ones([batch, seq, hidden], &device).require_grad();
        // Threads and pools grow to what they need.
        drop(split.forward(x.clone(), None, None)?.sum().backward());
        let pool = group.communicator().pool();
        let lent = pool.used_bytes();
        let mut output = None;
        let counted = allocation_counter::measure(|| {
            output = Some(split.forward(x.clone(), None, None));
        });
        let lent = pool.used_bytes() as i64 - lent as i64;
        let output = output.expect("it ran")?;
        drop(output.sum().backward());
        Ok(counted.bytes_current + lent - (4 * batch * seq * hidden) as i64)
    });
    results.into_iter().map(|r| r.expect("no fault")).collect()
}

#[test]
fn kept_bytes_are_those_of_the_formula() {
    let layer = LayerActivations {
        batch: 4,
        seq: 64,
        hidden: 256,
        heads: 4,
        d_ff: 768,
        ranks: 1,
        sequence_parallel: false,
        regather: false,
        dropout: false,
    };
    // Nodes of the graph, which do not grow with the layer.
    let tiny = LayerActivations {
        batch: 1,
        seq: 4,
        hidden: 8,
        heads: 4,
        d_ff: 8,
        ..layer
    };
    for dropout in [false, true] {
        for ranks in [1, 2, 4] {
            for (sequence_parallel, regather) in [(false, false), (true, false), (true, true)] {
                let how = |layer| LayerActivations {
                    ranks,
                    sequence_parallel,
                    regather,
                    dropout,
                    ..layer
                };
                let (layer, tiny) = (how(layer), how(tiny));
                let nodes: Vec<f64> = held(tiny)
                    .iter()
                    .map(|&b| b as f64 - tiny.bytes(4))
                    .collect();
                for (rank, (bytes, nodes)) in held(layer).into_iter().zip(nodes).enumerate() {
                    let measured = bytes as f64 - nodes;
                    let error = measured / layer.bytes(4) - 1.0;
                    let what = format!("rank {rank} of {layer:?}");
                    let text = format!("{what}: {measured} bytes, {error:+.4}\n{layer}");
                    assert!(error.abs() < 0.01, "{text}");
                    println!(
                        "{ranks} ranks, sequence {sequence_parallel}, regather {regather}, dropout {dropout}: {measured:.0} bytes, formula {:.0}, {error:+.4}",
                        layer.bytes(4)
                    );
                }
            }
        }
    }
}
