//! Bytes that all ranks together send in a run, by formula.

use burn::module::Module;
use burn_dist::data_parallel::{DataParallel, ParameterTable};
use burn_pipeline::SchedulePlan;
use burn_zero::{FullySharded, ShardedOptimizer};

use super::Arguments;
use super::arguments::DTypeName;
use super::strategy::Strategy;

/// Bytes of a norm's exact sum: 136 digits and the number of gradients that are not finite.
const NORM: u64 = (136 + 1) * 8;

/// What an all_reduce of `bytes` sends, of `n` ranks together.
fn all_reduce(bytes: u64, n: u64) -> u64 {
    2 * bytes * (n - 1)
}

/// For gradients and parameters, of `ranks` data-parallel ranks in `replicas` replicas in a run; `model` is
/// not sharded. `gathers` tells how often each unit of stage 3 was gathered.
pub(super) fn bytes_of_all_ranks<M: Module>(
    strategy: &Strategy,
    model: &M,
    arguments: &Arguments,
    (ranks, replicas): (u64, u64),
    gathers: &[u64],
) -> u64 {
    let tensors = parameters(model).specs().len() as u64;
    let steps = arguments.steps as u64;
    let whole = bytes_of_gradients(model, arguments, ranks);
    match strategy {
        Strategy::Sharded(sharded) => bytes_of_sharded(sharded, model, arguments, ranks),
        Strategy::Fully(sharded, _) => {
            let constant = fully_sharded(sharded, tensors, arguments, ranks, replicas);
            let shards = ranks / replicas;
            let units = (0..sharded.layout().num_units()).zip(gathers);
            let elements = units.map(|(unit, count)| padded(sharded, unit) * count);
            let gathered = elements.sum::<u64>() * compute_size(arguments);
            constant * steps + gathered * (shards - 1) * replicas
        }
        // The plain twin asks for each parameter whether any rank used it: one byte.
        Strategy::Plain(..) => whole + all_reduce(tensors, ranks) * steps,
        Strategy::Overlapped(parallel, _) => bytes_of_replicas(parallel, model, arguments, ranks),
        Strategy::AsRanks(..) => whole,
    }
}

/// For the gradients of replicas; in device memory also a byte per parameter to know whether any rank used it, as
/// nobody looks into the sums.
pub(super) fn bytes_of_replicas<M: Module>(
    parallel: &DataParallel,
    model: &M,
    arguments: &Arguments,
    ranks: u64,
) -> u64 {
    let is_reached = parallel.group().communicator().device().is_some();
    let flags = if is_reached {
        parallel.parameters().specs().len() as u64
    } else {
        0
    };
    bytes_of_gradients(model, arguments, ranks) + all_reduce(flags, ranks) * arguments.steps as u64
}

fn bytes_of_gradients<M: Module>(model: &M, arguments: &Arguments, ranks: u64) -> u64 {
    let bytes = num_parameters(model) * size_of::<f32>();
    all_reduce(bytes as u64, ranks) * arguments.steps as u64
}

/// For gradients and parameters of stages 1 and 2.
pub(super) fn bytes_of_sharded<M: Module>(
    sharded: &ShardedOptimizer,
    model: &M,
    arguments: &Arguments,
    ranks: u64,
) -> u64 {
    let tensors = parameters(model).specs().len() as u64;
    let held = sharded.layout().held_by_each() as u64 * ranks;
    let reduced = held * size_of::<f32>() as u64 * (ranks - 1);
    let gathered = held * compute_size(arguments) * (ranks - 1);
    let norm = arguments.clip.map_or(0, |_| all_reduce(NORM, ranks));
    // And a byte per parameter to know whether any rank used it.
    let per_step = reduced + gathered + all_reduce(tensors, ranks) + norm;
    per_step * arguments.steps as u64
}

/// Between the stages of all ranks of one replica in a run: an activation forward and its gradient back
/// over each border and for each micro-batch, each behind a header of 64 words; and a norm.
pub(super) fn bytes_between_stages(
    arguments: &Arguments,
    data_ranks: u64,
    plan: &SchedulePlan,
) -> u64 {
    let (pp, tp) = (arguments.pp as u64, arguments.tp as u64);
    // A rank hands nothing to itself over a link.
    let borders = (1..plan.num_stages()).filter(|&s| plan.rank_of(s - 1) != plan.rank_of(s));
    let part = if arguments.sequence_parallel { tp } else { 1 };
    let activation =
        elements_of_micro_batch(arguments, data_ranks) / part * compute_size(arguments);
    let messages = 2 * borders.count() as u64 * arguments.micro_batches as u64;
    let norm = arguments.clip.map_or(0, |_| all_reduce(NORM, pp));
    (messages * (activation + 64 * 8) + norm) * tp * arguments.steps as u64
}

/// B T D.
fn elements_of_micro_batch(arguments: &Arguments, data_ranks: u64) -> u64 {
    let sequences = arguments.batch as u64 / data_ranks / arguments.micro_batches as u64;
    sequences * arguments.seq as u64 * arguments.hidden as u64
}

/// For split layers, of all ranks of one replica in a run.
pub(super) fn bytes_of_split_layers(arguments: &Arguments, data_ranks: u64) -> u64 {
    let n = arguments.tp as u64;
    if n == 1 {
        return 0;
    }
    let hidden = arguments.hidden as u64;
    let elements = elements_of_micro_batch(arguments, data_ranks);
    let (tokens, size) = (elements / hidden, compute_size(arguments));
    let layers = arguments.layers as u64;
    // A reduce_scatter or an all_gather of activations; an all_reduce is two.
    let one = elements * size * (n - 1);
    // Each block takes four all_reduces, half of them forward, the embedding one forward, the head one
    // backward; the loss takes the largest logit, the sum and the target's logit.
    let forward = (4 * layers + 2) * one + all_reduce(3 * tokens * 4, n);
    let mut backward = (4 * layers + 2) * one;
    if arguments.sequence_parallel {
        // Positions are whole, and so is their gradient; norms add their vectors' gradients up.
        backward += arguments.seq as u64 * hidden * size * (n - 1);
        backward += (2 * layers + 1) * all_reduce(2 * hidden * size, n);
        if arguments.recompute && !arguments.is_piped() {
            backward += (2 * layers + 1) * one;
        }
    }
    // Stages run their blocks forward again.
    let again = arguments.is_piped() && arguments.recompute;
    let per_micro_batch = forward * (1 + u64::from(again)) + backward;
    let stages = arguments.pp as u64;
    let norm = arguments.clip.map_or(0, |_| all_reduce(NORM, n)) * stages;
    (per_micro_batch * arguments.micro_batches as u64 + norm) * arguments.steps as u64
}

/// Elements of a unit on all its ranks.
fn padded(sharded: &FullySharded, unit: usize) -> u64 {
    (sharded.layout().part_len(unit) * sharded.layout().ranks()) as u64
}

fn compute_size(arguments: &Arguments) -> u64 {
    match arguments.dtype {
        DTypeName::F32 => 4,
        DTypeName::Bf16 => 2,
    }
}

/// Of a step, but for the gathers.
fn fully_sharded(
    sharded: &FullySharded,
    tensors: u64,
    arguments: &Arguments,
    ranks: u64,
    replicas: u64,
) -> u64 {
    let layout = sharded.layout();
    let shards = ranks / replicas;
    let size = size_of::<f32>() as u64;
    let units = 0..layout.num_units();
    let split: u64 = units.map(|unit| padded(sharded, unit)).sum();
    let reduced = split * size * (shards - 1) * replicas;
    let whole: u64 = whole_elements(sharded) as u64;
    // Each rank's part of what is split, over the replicas; all of what is whole, and a byte per parameter
    // to know which were used, over both.
    let over_shards = all_reduce(whole * size + tensors, shards) * replicas;
    let part = split / shards;
    let over_replicas = all_reduce((part + whole) * size + tensors, replicas) * shards;
    let norm = arguments
        .clip
        .map_or(0, |_| all_reduce(NORM, shards) * replicas);
    reduced + over_shards + over_replicas + norm
}

fn whole_elements(sharded: &FullySharded) -> usize {
    let layout = sharded.layout();
    let own = sharded.group().index();
    let units = 0..layout.num_units();
    let pieces = units.flat_map(|unit| layout.pieces(unit, own));
    let split: usize = pieces.map(|piece| piece.place.len()).sum();
    sharded.num_elements() - split
}

/// Parameters of a model without its wrappers.
fn parameters<M: Module>(model: &M) -> ParameterTable {
    ParameterTable::of(&model.clone().materialize()).expect("invariant: nothing is wrapped")
}

/// Elements of all parameters.
pub(super) fn num_parameters<M: Module>(model: &M) -> usize {
    let table = parameters(model);
    let elements = table.specs().iter().map(|spec| spec.num_elements());
    elements.sum()
}
