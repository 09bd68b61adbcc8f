//! What every rank gets when ranks have unequal inputs or models, or are used wrongly.

use burn::module::Module;
use burn::tensor::Device;
use burn_dist::DistError;
use burn_dist::data_parallel::{DataParallel, parameter_hash};
use tests::run_group;

use super::adamw;
use super::models::{linear, mlp};

#[test]
fn uneven_inputs_join_or_fail_on_every_rank() {
    // 11 items, 2 ranks, batch 5: two steps on rank 0, one on rank 1.
    let joined = run_group(2, |group| {
        let device = Device::flex().autodiff();
        let (parallel, mut model) = DataParallel::wrap(mlp(0, &device), &group)?;
        let mut optimizer = adamw();
        let mut batches = 0..[2, 1][group.index()];
        let mut turns = Vec::new();
        loop {
            let batch = batches.next();
            let Some(turn) = parallel.join(batch.is_some())? else {
                break;
            };
            turns.push(turn.active);
            let gradients = match batch {
                Some(item) => parallel.sync(model.loss(item).backward(), &model)?,
                None => parallel.sync_without_input(&model)?,
            };
            model = optimizer.step(1e-2, model, gradients);
        }
        parallel.check_replicas(&model)?;
        Ok((turns, parameter_hash(&model)))
    });
    let joined: Vec<_> = joined.into_iter().map(|r| r.expect("no fault")).collect();
    assert_eq!(joined[0].0, [2, 1]);
    assert_eq!(joined[0], joined[1]);

    let plain = run_group(2, |group| {
        let device = Device::flex().autodiff();
        let (parallel, model) = DataParallel::wrap(mlp(0, &device), &group)?;
        for item in 0..[2, 1][group.index()] {
            parallel.sync(model.loss(item).backward(), &model)?;
        }
        Ok(())
    });
    let error = plain[0].as_ref().expect_err("its peer has ended");
    assert!(error.to_string().contains("1"), "{error}");
}

#[test]
fn models_that_differ_are_named_on_every_rank() {
    let results = run_group(3, |group| {
        let device = Device::flex().autodiff();
        let mut model = mlp(0, &device);
        if group.index() == 1 {
            model.second = linear(10, 8, 1, &device);
        }
        DataParallel::wrap(model, &group).map(drop)
    });
    for (rank, result) in results.into_iter().enumerate() {
        let error = result.expect_err("rank 1 differs");
        let DistError::Replica {
            differing,
            expected,
            got,
            ..
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!(*differing, if rank == 1 { 0 } else { 1 });
        assert!(
            expected.contains("second.weight") && got.contains("second.weight"),
            "{error}"
        );
        assert!(format!("{expected}{got}").contains("[10, 8]"), "{error}");
    }
}

#[test]
fn replicas_that_drift_are_named() {
    let results = run_group(2, |group| {
        let device = Device::flex().autodiff();
        let (parallel, mut model) = DataParallel::wrap(mlp(0, &device), &group)?;
        parallel.check_replicas(&model)?;
        if group.index() == 1 {
            model.third.weight = model.third.weight.map(|w| w.detach() + 1.0);
        }
        parallel.check_replicas(&model)
    });
    for result in results {
        let error = result.expect_err("rank 1 drifted").to_string();
        assert!(error.contains("third.weight"), "{error}");
    }
}

#[test]
fn wrong_use_is_refused() {
    let results = run_group(1, |group| {
        let device = Device::flex().autodiff();
        let (_, model) = DataParallel::wrap(mlp(0, &device), &group)?;
        let twice = DataParallel::wrap(model.clone(), &group).map(drop);
        let error = twice.expect_err("wrapped twice").to_string();
        assert!(
            error.contains("first.weight") && error.contains("data_parallel"),
            "{error}"
        );
        DataParallel::wrap(model.materialize(), &group)?;
        let plain = DataParallel::wrap(mlp(0, &Device::flex()), &group).map(drop);
        let error = plain.expect_err("no autodiff").to_string();
        assert!(error.contains("no trained parameter"), "{error}");
        // Two backward passes without a sync between them.
        let (parallel, model) = DataParallel::wrap(mlp(0, &device), &group)?;
        let _ = model.loss(0).backward();
        let error = parallel
            .sync(model.loss(1).backward(), &model)
            .map(drop)
            .expect_err("the first pass has launched the buckets");
        assert!(error.to_string().contains("no_sync"), "{error}");
        Ok(())
    });
    results.into_iter().for_each(|r| r.expect("no fault"));
}
