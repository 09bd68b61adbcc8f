//! Sharded runs, and the one that they are compared with.

use std::sync::Mutex;

use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor};
use burn_dist::data_parallel::{ParameterTable, RankOrderAccumulator};
use burn_dist::{ProcessGroup, Result};
use burn_zero::{FullyShard, FullySharded, UnitPolicy};
pub(crate) use tests::parameter_bits as bits;
use tests::run_group;

use crate::models::Toy;

pub(crate) const STEPS: usize = 6;
pub(crate) const LR: f64 = 1e-2;

/// What a run gives: the losses of each rank's items, and the parameters at its end.
pub(crate) type Outcome = (Vec<Vec<u8>>, Vec<Vec<u8>>);

fn loss_bits(loss: &Tensor<1>) -> Vec<u8> {
    loss.clone().into_data().as_bytes().to_vec()
}

/// One rank in the grouping of `n`: for each rank the bits of its losses, and the parameters.
pub(crate) fn reference<M: Toy>(
    start: &M,
    n: usize,
    mut optimizer: ModuleOptimizer,
    steps: usize,
) -> Vec<Outcome> {
    let device = Device::flex().autodiff();
    let mut model = start.valid().train();
    let mut losses = vec![Vec::new(); n];
    for step in 0..steps {
        let mut sum = RankOrderAccumulator::new();
        for (rank, losses) in losses.iter_mut().enumerate() {
            let loss = model.loss(step * n + rank, &device);
            losses.push(loss_bits(&loss));
            sum.add(&model, GradientsParams::from_grads(loss.backward(), &model));
            sum.end_rank(&model);
        }
        let gradients = sum.mean(&model);
        model = optimizer.step(LR, model, gradients);
    }
    let end = bits(&model);
    losses
        .into_iter()
        .map(|losses| (losses, end.clone()))
        .collect()
}

pub(crate) fn train<M: Toy>(
    start: M,
    mut optimizer: ModuleOptimizer,
    settings: FullyShard,
    group: &ProcessGroup,
    steps: usize,
) -> Result<(Vec<Vec<u8>>, M, FullySharded)> {
    let device = Device::flex().autodiff();
    let (n, rank) = (group.size(), group.index());
    let (sharded, mut model) = settings.wrap(start)?;
    let mut losses = Vec::new();
    for step in 0..steps {
        let loss = model.loss(step * n + rank, &device);
        losses.push(loss_bits(&loss));
        let gradients = sharded.gradients(loss.backward(), &model)?;
        model = optimizer.step(LR, model, gradients);
    }
    Ok((losses, model, sharded))
}

/// A hundred steps on two ranks.
pub(crate) fn check_long<M: Toy + 'static>(optimizer: fn() -> ModuleOptimizer) {
    let settings = |group: &ProcessGroup| FullyShard::new(group).least_unit_bytes(0);
    compare::<M>(optimizer, settings, &[2], 100);
}

/// Fully sharded on 1 to 4 ranks, in several ways, against one rank.
pub(crate) fn check<M: Toy + 'static>(optimizer: fn() -> ModuleOptimizer) {
    let settings: [fn(&ProcessGroup) -> FullyShard; 4] = [
        |group| FullyShard::new(group).least_unit_bytes(0),
        |group| {
            FullyShard::new(group)
                .units(UnitPolicy::BySize(200))
                .prefetch(false)
        },
        |group| {
            FullyShard::new(group)
                .units(UnitPolicy::Whole)
                .reshard_after_forward(false)
        },
        |group| FullyShard::new(group).least_unit_bytes(0).whole_below(10),
    ];
    for settings in settings {
        check_with::<M>(optimizer, settings);
    }
}

pub(crate) fn check_with<M: Toy + 'static>(
    optimizer: fn() -> ModuleOptimizer,
    settings: fn(&ProcessGroup) -> FullyShard,
) {
    compare::<M>(optimizer, settings, &[1, 2, 3, 4], STEPS);
}

fn compare<M: Toy + 'static>(
    optimizer: fn() -> ModuleOptimizer,
    settings: fn(&ProcessGroup) -> FullyShard,
    ranks: &[usize],
    steps: usize,
) {
    let device = Device::flex().autodiff();
    let start = M::init(&device);
    // Burn draws parameters when they are first read.
    ParameterTable::of(&start).expect("nothing is wrapped");
    for &n in ranks {
        let expected = reference(&start, n, optimizer(), steps);
        assert!(bits(&start) != expected[0].1, "nothing was learnt");
        let shared = Mutex::new(start.clone());
        let found = run_group(n, |group| {
            let start = shared.lock().expect("not poisoned").clone();
            let (losses, model, _) = train(start, optimizer(), settings(&group), &group, steps)?;
            Ok((losses, bits(&model.materialize())))
        });
        for (found, expected) in found.into_iter().zip(expected) {
            let found = found.expect("no fault");
            assert!(found.0 == expected.0, "{n} ranks: losses differ");
            assert!(found.1 == expected.1, "{n} ranks: parameters differ");
        }
    }
}
