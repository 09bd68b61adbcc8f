//! What splitting a transformer layer costs and saves: a forward and a backward pass of Burn's encoder layer
//! on one rank and of the split one on 1, 2 and 4, with what is sent and what is kept between the passes.
//!
//! `cargo bench -p burn-dist --bench tensor_parallel [-- --ranks 1,2,4 --rounds N --json FILE]`
//!
//! Ranks are processes of one thread each. In every round the dense layer runs on rank 0 while the others
//! wait, then each mode runs on all ranks; a mode's time is that of its slowest rank, and ratios are medians
//! over rounds. Every run verifies the output and the input's gradient
//! against the dense layer, what is sent against the formula, and what is kept within 1 %.

use std::path::PathBuf;
use std::time::Instant;

use burn::module::Module;
use burn::nn::transformer::{TransformerEncoderConfig, TransformerEncoderLayer};
use burn::tensor::{Device, Distribution, Tensor};
use burn_dist::communicator::ReduceOp;
use burn_dist::tensor_parallel::{LayerActivations, ParallelEncoderLayer, TensorParallel};
use burn_dist::{DistError, ProcessGroup, Result, World};
use clap::Parser;
use examples::workload::{median, started, write_found, write_json};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Parser)]
struct Arguments {
    /// Numbers of ranks
    #[arg(long, value_delimiter = ',', default_value = "1,2,4")]
    ranks: Vec<usize>,
    /// Rounds that are measured
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Write the rows as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Where a started process writes its rows
    #[arg(long, hide = true)]
    found: Option<PathBuf>,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// One mode on a number of ranks.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Row {
    tp: usize,
    mode: String,
    /// Seconds of both passes, of the slowest rank.
    seconds: f64,
    /// Of the dense layer on one rank, in the same rounds.
    dense_seconds: f64,
    ratio_to_dense: f64,
    /// Bytes that a rank sends, both passes.
    traffic_bytes: u64,
    traffic_formula: u64,
    /// Bytes that a rank keeps between the passes.
    kept_bytes: u64,
    kept_formula: u64,
    verified: bool,
}

const BATCH: usize = 8;
const SEQ: usize = 128;
const HIDDEN: usize = 512;
const HEADS: usize = 8;
const D_FF: usize = 4 * HIDDEN;

struct Mode {
    name: &'static str,
    sequence: bool,
    regather: bool,
    overlap: bool,
}

fn modes(ranks: usize) -> Vec<Mode> {
    let mode = |name, sequence, regather, overlap| Mode {
        name,
        sequence,
        regather,
        overlap,
    };
    let mut modes = vec![mode("split", false, false, true)];
    if ranks > 1 {
        modes.push(mode("split, no overlap", false, false, false));
        modes.push(mode("sequence", true, false, true));
        modes.push(mode("sequence, regather", true, true, true));
    }
    modes
}

/// Output and the input's gradient of both passes.
type Passes = (Tensor<3>, Tensor<3>);

/// The loss looks at this rank's part of the output; the parts' losses add up to the whole one's.
fn passes(input: &Tensor<3>, f: impl Fn(Tensor<3>) -> Result<Tensor<3>>) -> Result<Passes> {
    let input = input.clone().detach().require_grad();
    let output = f(input.clone())?;
    let gradients = output.clone().powi_scalar(2).sum().backward();
    let gradient = input.grad(&gradients).expect("invariant: it is tracked");
    Ok((output.inner(), gradient))
}

/// Whether both are those of the dense layer, whose `own` part along the sequence this rank has.
fn agree(got: &Passes, dense: &Passes, own: std::ops::Range<usize>) -> bool {
    let close = |got: &Tensor<3>, dense: &Tensor<3>| {
        let dense = dense.clone().slice_dim(1, own.clone());
        let largest = dense.clone().abs().max().into_scalar::<f32>();
        let difference = (got.clone() - dense).abs().max().into_scalar::<f32>();
        difference <= 1e-4 * largest
    };
    close(&got.0, &dense.0) && close(&got.1, &dense.1)
}

fn measure(group: &ProcessGroup, rounds: usize) -> Result<Vec<Row>> {
    let device = Device::flex().autodiff();
    device.seed(5);
    let config = TransformerEncoderConfig::new(HIDDEN, D_FF, HEADS, 1)
        .with_dropout(0.0)
        .with_norm_first(true);
    let dense = TransformerEncoderLayer::new(&config, &device);
    // Drawn now, in the same order on every rank.
    let _ = dense.num_params();
    let whole = Tensor::<3>::random([BATCH, SEQ, HIDDEN], Distribution::Default, &device);
    let (n, index) = (group.size(), group.index());
    let dense_pass = || passes(&whole, |x| Ok(dense.forward(x, None, None)));
    let expected = dense_pass()?;
    let modes = modes(n);
    let mut layers = Vec::new();
    let mut rows = Vec::new();
    for mode in &modes {
        let parallel = TensorParallel::new(group)
            .sequence_parallel(mode.sequence)
            .regather(mode.regather)
            .overlap(mode.overlap);
        let layer = ParallelEncoderLayer::from_dense(&dense, &parallel)?;
        let own = match mode.sequence {
            true => index * SEQ / n..(index + 1) * SEQ / n,
            false => 0..SEQ,
        };
        let input = whole.clone().slice_dim(1, own.clone());
        let run = || passes(&input, |x| layer.forward(x, None, None));
        let mut verified = agree(&run()?, &expected, own);
        verified = group.all_reduce_values(vec![u8::from(verified)], ReduceOp::Min)? == [1];
        let before = group.traffic().total_sent();
        run()?;
        let sent = group.traffic().total_sent() - before;
        let sent = group.all_reduce_values(vec![sent], ReduceOp::Sum)?[0] / n as u64;
        let pool = group.communicator().pool();
        let lent = pool.used_bytes() as i64;
        let mut output = None;
        let counted = allocation_counter::measure(|| {
            output = Some(layer.forward(input.clone().detach().require_grad(), None, None));
        });
        let output = output.expect("invariant: it ran")?;
        // Neither the input, which is copied here, nor the output is kept by the layer.
        let edges = (4 * output.shape().num_elements()) as i64;
        let kept = counted.bytes_current + pool.used_bytes() as i64 - lent - edges;
        drop(output.sum().backward());
        rows.push(Row {
            tp: n,
            mode: mode.name.into(),
            seconds: 0.0,
            dense_seconds: 0.0,
            ratio_to_dense: 0.0,
            traffic_bytes: sent,
            traffic_formula: formula(mode, n as u64),
            kept_bytes: kept.max(0) as u64,
            kept_formula: activations(mode, n).bytes(4) as u64,
            verified,
        });
        layers.push((layer, input));
    }
    let mut seconds = vec![Vec::new(); modes.len()];
    let mut alone = Vec::new();
    for round in 0..rounds {
        group.barrier()?;
        let start = Instant::now();
        if index == 0 {
            dense_pass()?;
        }
        let own = start.elapsed().as_secs_f64();
        alone.push(group.all_reduce_values(vec![own], ReduceOp::Max)?[0]);
        // The first mode of a round changes from round to round.
        for i in 0..modes.len() {
            let mode = (round + i) % modes.len();
            let (layer, input) = &layers[mode];
            group.barrier()?;
            let start = Instant::now();
            passes(input, |x| layer.forward(x, None, None))?;
            let own = start.elapsed().as_secs_f64();
            seconds[mode].push(group.all_reduce_values(vec![own], ReduceOp::Max)?[0]);
        }
    }
    for (row, seconds) in rows.iter_mut().zip(seconds) {
        let pairs = seconds.iter().zip(&alone);
        row.ratio_to_dense = median(pairs.map(|(mode, dense)| mode / dense).collect());
        row.seconds = median(seconds);
        row.dense_seconds = median(alone.clone());
    }
    Ok(rows)
}

/// Four all_reduces of the activations, or as many gathers and reduce_scatters; with split sequences also the
/// vectors of two norms, and a gather more for an input that is gathered again.
fn formula(mode: &Mode, n: u64) -> u64 {
    let activations = (BATCH * SEQ * HIDDEN) as u64;
    let mut elements = 8 * activations * (n - 1);
    if mode.sequence {
        elements += 2 * 2 * (2 * HIDDEN as u64) * (n - 1);
    }
    if mode.regather {
        elements += 2 * activations * (n - 1);
    }
    4 * elements / n
}

fn activations(mode: &Mode, ranks: usize) -> LayerActivations {
    LayerActivations {
        batch: BATCH,
        seq: SEQ,
        hidden: HIDDEN,
        heads: HEADS,
        d_ff: D_FF,
        ranks,
        sequence_parallel: mode.sequence,
        regather: mode.regather,
        dropout: false,
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(path) = &arguments.found {
        let group = World::from_env()?.whole()?;
        let rows = measure(&group, arguments.rounds)?;
        return write_found(group.index(), path, &rows);
    }
    let mut rows: Vec<Row> = Vec::new();
    let rounds = arguments.rounds.to_string();
    for &ranks in &arguments.ranks {
        rows.extend(started::<Vec<Row>>(ranks, 1, &["--rounds", &rounds])?);
    }
    let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "tp  mode                 passes     over dense  sent MiB (formula)  kept MiB (formula)  verified"
    );
    for row in &rows {
        println!(
            "{:>2}  {:<19}  {:>6.1} ms  {:>9.3}x  {:>8.2} {:>9.2}  {:>8.2} {:>9.2}  {}",
            row.tp,
            row.mode,
            row.seconds * 1e3,
            row.ratio_to_dense,
            mebibytes(row.traffic_bytes),
            mebibytes(row.traffic_formula),
            mebibytes(row.kept_bytes),
            mebibytes(row.kept_formula),
            row.verified
        );
    }
    if let Some(path) = &arguments.json {
        write_json(path, &rows)?;
    }
    let is_right = |row: &Row| {
        let kept = row.kept_bytes as f64 / row.kept_formula as f64;
        row.verified && row.traffic_bytes == row.traffic_formula && (kept - 1.0).abs() < 0.01
    };
    match rows.iter().all(is_right) {
        true => Ok(()),
        false => Err(DistError::config(
            "a split layer gave other numbers than the dense one, or than a formula",
            "this is a bug",
        )),
    }
}
