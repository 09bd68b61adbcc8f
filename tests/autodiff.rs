//! Collectives in the autodiff graph: forward values, gradients against their definition, placement
//! in the backward order, re-run in the backward pass.

use std::sync::Arc;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_dist::backend::{self, Conjugate, Ladder, Step};
use burn_dist::collectives::*;
use burn_dist::communicator::{RecordingCommunicator, ReduceOp};
use burn_dist::{DistError, ProcessGroup, Result};
use tests::run_group;

/// A fixed matrix that differs from rank to rank, `[rows, columns]`.
fn input(rank: usize, rows: usize, columns: usize, device: &Device) -> Tensor<2> {
    let values: Vec<f32> = (0..rows * columns)
        .map(|i| ((i * 7 + rank * 13) % 11) as f32 / 4.0 - 1.0)
        .collect();
    Tensor::from_data(TensorData::new(values, [rows, columns]), device)
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().expect("f32")
}

/// The gradient that each rank's input gets for the loss `sum over ranks of <w_r, f(x)_r>`, checked
/// by finite differences over every element of every rank's input. `f` is linear, so that a
/// difference of one whole step is exact up to rounding.
fn check_adjoint(
    n: usize,
    rows: usize,
    columns: usize,
    f: impl Fn(Tensor<2>, &ProcessGroup) -> Result<Tensor<2>> + Send + Sync,
) {
    let results = run_group(n, |group| {
        let device = Device::flex().autodiff();
        let rank = group.index();
        let x = input(rank, rows, columns, &device).require_grad();
        let y = f(x.clone(), &group)?;
        let weight = input(rank + 5, y.dims()[0], y.dims()[1], &device);
        let grads = (y * weight.clone()).sum().backward();
        let grad = values(x.grad(&grads).expect("x is tracked"));
        let loss = |bump: Option<(usize, usize)>| -> Result<f32> {
            let mut data: Vec<f32> = values(input(rank, rows, columns, &device));
            if let Some((_, element)) = bump.filter(|(r, _)| *r == rank) {
                data[element] += 1.0;
            }
            let x = Tensor::<2>::from_data(TensorData::new(data, [rows, columns]), &device);
            let y = f(x, &group)?;
            let part = (y * weight.clone()).sum().into_scalar::<f32>();
            Ok(group.all_reduce_values(vec![part], ReduceOp::Sum)?[0])
        };
        let at_rest = loss(None)?;
        let mut numeric = vec![0.0; rows * columns];
        for r in 0..n {
            for element in 0..rows * columns {
                let difference = loss(Some((r, element)))? - at_rest;
                if r == rank {
                    numeric[element] = difference;
                }
            }
        }
        Ok((grad, numeric))
    });
    for (rank, result) in results.into_iter().enumerate() {
        let (grad, numeric) = result.expect("no fault");
        for (element, (a, b)) in grad.iter().zip(&numeric).enumerate() {
            assert!(
                (a - b).abs() < 1e-3,
                "rank {rank} element {element}: gradient {a}, difference {b}"
            );
        }
    }
}

#[test]
fn plain_collectives_take_their_adjoint_backward() {
    for n in [1, 2, 3] {
        check_adjoint(n, 2, 3, |x, g| all_reduce(x, ReduceOp::Sum, g));
        check_adjoint(n, 2, 3, |x, g| all_reduce(x, ReduceOp::Mean, g));
        for dim in [0, 1] {
            check_adjoint(n, 2 * n, 3 * n, move |x, g| {
                reduce_scatter(x, ReduceOp::Sum, dim, g)
            });
            check_adjoint(n, 2 * n, n, move |x, g| {
                reduce_scatter(x, ReduceOp::Mean, dim, g)
            });
            check_adjoint(n, 2, 3, move |x, g| all_gather(x, dim, g));
            check_adjoint(n, 2 * n, n, move |x, g| all_to_all(x, dim, 1 - dim, g));
            check_adjoint(n, 2 * n, n, move |x, g| all_to_all(x, dim, dim, g));
        }
        check_adjoint(n, 2, 3, move |x, g| broadcast(x, n - 1, g));
    }
}

#[test]
fn neighbours_and_uneven_parts_take_their_adjoint_backward() {
    check_adjoint(3, 2, 3, |x, g| {
        let (next, before) = ((g.index() + 1) % 3, (g.index() + 2) % 3);
        send_recv(x, next, before, [2, 3], g)
    });
    // Rank r keeps one row and sends the other two to its successor.
    check_adjoint(3, 3, 2, |x, g| {
        let r = g.index();
        let (mut send, mut receive) = (vec![0; 3], vec![0; 3]);
        send[r] = 1;
        send[(r + 1) % 3] = 2;
        receive[r] = 1;
        receive[(r + 2) % 3] = 2;
        all_to_all_uneven(x, 0, &send, &receive, g)
    });
}

/// A region's gradients, against their table in `region.rs`: forward output and gradient of
/// `<weight, f(x)>` on each rank.
#[test]
fn regions_do_what_their_table_says() {
    let n = 2;
    let results = run_group(n, |group| {
        let device = Device::flex().autodiff();
        let rank = group.index();
        let run = |f: &dyn Fn(Tensor<2>) -> Result<Tensor<2>>| -> Result<(Vec<f32>, Vec<f32>)> {
            let x = input(rank, 2, 2, &device).require_grad();
            let y = f(x.clone())?;
            let weight = input(rank + 3, y.dims()[0], y.dims()[1], &device);
            let grads = (y.clone() * weight).sum().backward();
            Ok((values(y), values(x.grad(&grads).expect("tracked"))))
        };
        Ok([
            run(&|x| copy_to_region(x, &group))?,
            run(&|x| reduce_from_region(x, &group))?,
            run(&|x| gather_from_region(x, 0, &group))?,
            run(&|x| scatter_to_region(x, 0, &group))?,
            run(&|x| gather_to_region(x, 1, &group))?,
            run(&|x| reduce_scatter_from_region(x, 1, &group))?,
        ])
    });
    let results: Vec<_> = results.into_iter().map(|r| r.expect("no fault")).collect();
    let plain = Device::flex();
    let x = |r| input(r, 2, 2, &plain);
    let weight = |r: usize, rows, columns| input(r + 3, rows, columns, &plain);
    for (rank, [copy, reduce, gather, scatter, to, from]) in results.into_iter().enumerate() {
        assert_eq!(copy.0, values(x(rank)));
        assert_eq!(copy.1, values(weight(0, 2, 2) + weight(1, 2, 2)));
        assert_eq!(reduce.0, values(x(0) + x(1)));
        assert_eq!(reduce.1, values(weight(rank, 2, 2)));
        assert_eq!(gather.0, values(Tensor::cat(vec![x(0), x(1)], 0)));
        let own = weight(rank, 4, 2).slice([2 * rank..2 * rank + 2]);
        assert_eq!(gather.1, values(own));
        assert_eq!(scatter.0, values(x(rank).slice([rank..rank + 1])));
        let joined = Tensor::cat(vec![weight(0, 1, 2), weight(1, 1, 2)], 0);
        assert_eq!(scatter.1, values(joined));
        assert_eq!(to.0, values(Tensor::cat(vec![x(0), x(1)], 1)));
        let sum = weight(0, 2, 4) + weight(1, 2, 4);
        assert_eq!(to.1, values(sum.slice([0..2, 2 * rank..2 * rank + 2])));
        let sum = (x(0) + x(1)).slice([0..2, rank..rank + 1]);
        assert_eq!(from.0, values(sum));
        let joined = Tensor::cat(vec![weight(0, 2, 1), weight(1, 2, 1)], 1);
        assert_eq!(from.1, values(joined));
    }
}

#[test]
fn kinds_without_gradients_travel_too() {
    let results = run_group(2, |group| {
        let device = Device::flex();
        let rank = group.index() as i64;
        let x = Tensor::<1, Int>::from_data([rank, 10 + rank], (&device, DType::I64));
        let sum = all_reduce(x.clone(), ReduceOp::Sum, &group)?;
        let all = all_gather(x.clone().unsqueeze::<2>(), 1, &group)?;
        let any = all_reduce(x.clone().equal_elem(1), ReduceOp::Max, &group)?;
        let refused = all_reduce(x, ReduceOp::Mean, &group);
        assert!(matches!(refused, Err(DistError::InvalidCall { .. })));
        let gathered = gather(Tensor::<1>::full([2], rank as f64, &device), 1, &group)?;
        assert_eq!(gathered.is_some(), group.index() == 1);
        let whole = (rank == 0).then(|| Tensor::<1>::from_data([1.0, 2.0, 3.0, 4.0], &device));
        let part = scatter(whole, 0, &device, &group)?;
        if rank == 0 {
            send(part.clone(), 1, &group)?;
        } else {
            let received: Tensor<1> = recv([2], 0, &device, &group)?;
            assert_eq!(values(received), [1.0, 2.0]);
        }
        Ok((
            sum.into_data().try_to_vec::<i64>().expect("i64"),
            all.into_data().try_to_vec::<i64>().expect("i64"),
            any.into_data().try_to_vec::<bool>().expect("bool"),
            values(part),
        ))
    });
    for (rank, result) in results.into_iter().enumerate() {
        let (sum, all, any, part) = result.expect("no fault");
        assert_eq!(sum, [1, 21]);
        assert_eq!(all, [0, 10, 1, 11]);
        assert_eq!(any, [true, false]);
        assert_eq!(part, [[1.0, 2.0], [3.0, 4.0]][rank]);
    }
}

#[test]
fn a_started_collective_runs_beside_its_caller() {
    let results = run_group(3, |group| {
        let device = Device::flex();
        let one = start_all_reduce(Tensor::<1>::full([3], 1.0, &device), ReduceOp::Sum, &group);
        let ten = start_all_reduce(Tensor::<1>::full([3], 10.0, &device), ReduceOp::Sum, &group);
        let all = start_all_gather(
            Tensor::<1>::full([1], group.index() as f64, &device),
            &group,
        );
        let part = start_reduce_scatter(
            Tensor::<1>::from_data([1.0, 2.0, 3.0], &device),
            ReduceOp::Sum,
            &group,
        );
        Ok((
            values(one.wait()?),
            values(ten.wait()?),
            values(all.wait()?),
            values(part.wait()?),
        ))
    });
    for (rank, result) in results.into_iter().enumerate() {
        let (one, ten, all, part) = result.expect("no fault");
        assert_eq!((one, ten), (vec![3.0; 3], vec![30.0; 3]));
        assert_eq!(all, [0.0, 1.0, 2.0]);
        assert_eq!(part, [3.0 * (rank + 1) as f32]);
    }
}

#[test]
fn a_recomputed_gather_runs_again_in_the_backward_pass() {
    let count = |recompute: bool| {
        let results = run_group(2, move |group| {
            let device = Device::flex().autodiff();
            let x = input(group.index(), 2, 2, &device).require_grad();
            let backward = Step::ReduceScatter {
                op: ReduceOp::Sum,
                dim: 0,
            };
            let mut pair = Conjugate::new(Step::AllGather { dim: 0 }, backward, &group);
            if recompute {
                pair = pair.recomputed();
            }
            let whole = backend::apply(x.clone(), pair, None)?;
            // The square needs its input again in the backward pass.
            let grads = (whole.clone() * whole).sum().backward();
            let grad = values(x.grad(&grads).expect("tracked"));
            Ok((group.traffic().calls, grad))
        });
        results
            .into_iter()
            .map(|r| r.expect("no fault"))
            .collect::<Vec<_>>()
    };
    let (kept, again) = (count(false), count(true));
    for rank in 0..2 {
        assert_eq!(kept[rank].0, 2, "gather and reduce-scatter");
        assert_eq!(again[rank].0, 3, "gather twice and reduce-scatter");
        assert_eq!(kept[rank].1, again[rank].1);
    }
}

#[test]
fn a_rung_makes_a_backward_collective_run_beside_its_layer() {
    // x -> first weight -> activation, reduced in backward -> second weight
    let backward_order = |with_rungs: bool| -> Vec<usize> {
        let results = run_group(2, move |group| {
            let recording = Arc::new(RecordingCommunicator::new(group.communicator().clone()));
            let group = ProcessGroup::new(recording.clone());
            let device = Device::flex().autodiff();
            let mut ladder = Ladder::new(&device, 32);
            let mut summed = |weight: Tensor<2>| {
                let rung = ladder.next_rung();
                let sum = Step::AllReduce(ReduceOp::Sum);
                let pair = Conjugate::new(Step::Identity, sum, &group);
                backend::apply(weight, pair, with_rungs.then_some(&rung))
            };
            let first = summed(input(0, 2, 3, &device).require_grad())?;
            let second = summed(input(1, 3, 4, &device).require_grad())?;
            let hidden = input(2, 5, 2, &device).matmul(first).tanh();
            let hidden = copy_to_region(hidden, &group)?;
            let loss = hidden.matmul(second).tanh().sum();
            drop(loss.backward());
            // [2, 3] is the first weight, [5, 3] the activation, [3, 4] the second weight.
            let rows: Vec<usize> = recording.calls().iter().map(|c| c.shape[0]).collect();
            Ok(rows)
        });
        let mut orders = results.into_iter().map(|r| r.expect("no fault"));
        let order = orders.next().expect("two ranks");
        assert_eq!(orders.next(), Some(order.clone()));
        order
    };
    assert_eq!(backward_order(true), [3, 5, 2], "each beside its layer");
    let without = backward_order(false);
    assert_eq!(without[0], 5, "weights wait for the end: {without:?}");
}

#[test]
fn a_failure_in_the_backward_pass_is_returned_by_the_next_check() {
    let results = run_group(2, |group| {
        let device = Device::flex().autodiff();
        let x = input(group.index(), 2, 2, &device).require_grad();
        let y = copy_to_region(x.clone(), &group)?;
        if group.index() == 1 {
            // This rank calls something else where its peer reduces a gradient.
            return group.barrier().map(|()| (false, vec![]));
        }
        let grads = y.sum().backward();
        let grad = values(x.grad(&grads).expect("tracked"));
        let failed = group.check().is_err() && copy_to_region(x, &group).is_err();
        Ok((failed, grad))
    });
    let (failed, grad) = results[0].as_ref().expect("reports through check");
    assert!(failed);
    assert!(
        grad.iter().all(|x| x.is_nan()),
        "never taken for good: {grad:?}"
    );
    let error = results[1]
        .as_ref()
        .expect_err("a barrier met an all_reduce");
    let text = error.to_string();
    assert!(
        text.contains("barrier") && text.contains("all_reduce"),
        "{text}"
    );
}

#[test]
fn shapes_that_do_not_fit_are_refused_before_anything_is_sent() {
    let results = run_group(2, |group| {
        let device = Device::flex().autodiff();
        let x = input(0, 3, 2, &device);
        let refused = [
            reduce_scatter(x.clone(), ReduceOp::Sum, 0, &group).map(drop),
            all_gather(x.clone(), 2, &group).map(drop),
            scatter_to_region(x.clone(), 0, &group).map(drop),
            broadcast(x.clone(), 2, &group).map(drop),
            all_reduce(x.clone(), ReduceOp::Max, &group).map(drop),
            gather(x.clone(), 0, &group).map(drop),
            all_to_all_uneven(x, 0, &[1, 1], &[1, 1], &group).map(drop),
        ];
        for (i, refused) in refused.iter().enumerate() {
            assert!(
                matches!(refused, Err(DistError::InvalidCall { .. })),
                "case {i}: {refused:?}"
            );
        }
        group.barrier()?;
        Ok(group.traffic().total_sent())
    });
    for result in results {
        assert_eq!(result.expect("the group is still good"), 0);
    }
}
