//! A stage that fails ends every rank with an error that names it.

use std::ops::Range;

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use burn_dist::{DistError, Result, World, WorldOptions, launch_threads};
use burn_pipeline::{
    Activation, PipelineLinks, PipelineRuntime, PipelineStage, PipelineStep, Schedule,
};

use super::options;

fn device() -> Device {
    Device::flex().autodiff()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Error,
    Panic,
    /// Gives a tensor of another rank to the next stage.
    Shape,
    /// The last block gives no loss.
    NoLoss,
    /// The rank leaves before the step.
    Absent,
}

/// Block 1 of the middle stage misbehaves at micro-batch 2.
#[derive(Module, Debug)]
struct Bad {
    weight: Param<Tensor<1>>,
    #[module(skip)]
    blocks: Range<usize>,
    #[module(skip)]
    fault: Fault,
}

impl PipelineStage for Bad {
    type Batch = usize;

    fn blocks(&self) -> Range<usize> {
        self.blocks.clone()
    }

    fn forward_block(
        &self,
        block: usize,
        mut input: Vec<Activation>,
        batch: &usize,
    ) -> Result<Vec<Activation>> {
        let x = match block {
            0 => Tensor::ones([2, 4], &device()),
            _ => input.remove(0).float::<2>()?,
        };
        let y = x * self.weight.val().unsqueeze();
        if block == 2 {
            return Ok(match self.fault {
                Fault::NoLoss => vec![y.into()],
                _ => vec![y.mean().into()],
            });
        }
        match self.fault {
            Fault::Error if block == 1 && *batch == 2 => {
                Err(DistError::config("the data is bad", "look at item 2"))
            }
            Fault::Panic if block == 1 && *batch == 2 => panic!("on purpose"),
            Fault::Shape if block == 1 && *batch == 2 => Ok(vec![y.unsqueeze::<3>().into()]),
            _ => Ok(vec![y.into()]),
        }
    }
}

fn run(world: &World, fault: Fault) -> Result<PipelineStep> {
    let plan = Schedule::OneFOneB.plan(3, 4)?;
    let links = PipelineLinks::over(world, &[0, 1, 2])?;
    let mut runtime = PipelineRuntime::new(&plan, links, &device())?;
    let rank = world.rank();
    if fault == Fault::Absent && rank == 1 {
        let cause = DistError::config("rank 1 leaves", "nothing");
        runtime
            .links()
            .groups()
            .for_each(|group| group.abort(cause.clone()));
        return Err(cause);
    }
    let stage = Bad {
        weight: Param::from_tensor(Tensor::ones([4], &device())),
        blocks: rank..rank + 1,
        fault,
    };
    let batches: Vec<usize> = (0..4).collect();
    let first = runtime.step(std::slice::from_ref(&stage), &batches, &[1.0; 4]);
    if let Err(error) = &first {
        // Later steps are refused with the first cause.
        let later = runtime.step(std::slice::from_ref(&stage), &batches, &[1.0; 4]);
        assert!(later.is_err(), "after {error}");
    }
    first
}

/// What each rank met.
fn errors(fault: Fault) -> Vec<String> {
    let found = std::sync::Mutex::new(vec![String::new(); 3]);
    let options = WorldOptions {
        step_timeout: std::time::Duration::from_secs(10),
        ..options()
    };
    let outcome = launch_threads(3, options, |world| {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&world, fault)));
        let text = match caught {
            Ok(Ok(_)) => "went well".into(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "panicked".into(),
        };
        found.lock().expect("no panic under this lock")[world.rank()] = text;
        Ok(())
    });
    outcome.expect("every rank reports by itself");
    found.into_inner().expect("no panic under this lock")
}

#[test]
fn a_stage_that_fails_is_named_on_every_rank() {
    for (fault, words) in [
        (Fault::Error, "the data is bad"),
        (Fault::Panic, "it panicked"),
    ] {
        let texts = errors(fault);
        for (rank, text) in texts.iter().enumerate() {
            if fault == Fault::Panic && rank == 1 {
                assert_eq!(text, "panicked");
                continue;
            }
            let names = ["stage 1, micro-batch 2, action 1F2", words];
            assert!(
                names.iter().all(|name| text.contains(name)),
                "rank {rank}: {text}"
            );
            assert!(
                text.starts_with(&format!("rank {rank}, stage ")),
                "rank {rank}: {text}"
            );
        }
    }
}

#[test]
fn a_wrong_shape_and_a_missing_loss_are_named() {
    let texts = errors(Fault::Shape);
    let named = |text: &String| text.contains("2F2") && text.contains("[1, 2, 4]");
    assert!(texts.iter().all(named), "{texts:?}");
    let texts = errors(Fault::NoLoss);
    let named = |text: &String| text.contains("2F0") && text.contains("mean loss");
    assert!(texts.iter().all(named), "{texts:?}");
}

#[test]
fn a_neighbour_that_leaves_is_named() {
    let texts = errors(Fault::Absent);
    for rank in [0, 2] {
        let text = &texts[rank];
        assert!(
            text.contains("rank 1 leaves") && text.contains("action"),
            "{text}"
        );
    }
}

#[test]
fn a_healthy_pipeline_goes_well() {
    assert_eq!(errors(Fault::None), ["went well"; 3]);
}

#[test]
fn what_does_not_fit_the_schedule_is_refused_before_anything_is_sent() {
    let outcome = launch_threads(2, options(), |world| {
        let links = || PipelineLinks::over(&world, &[0, 1]);
        let three = Schedule::GPipe.plan(3, 2)?;
        let refused = PipelineRuntime::new(&three, links()?, &device());
        let text = refused.expect_err("three ranks").to_string();
        assert!(text.contains("3 ranks in a pipeline of 2"), "{text}");
        let plan = Schedule::GPipe.plan(2, 2)?;
        let mut runtime = PipelineRuntime::new(&plan, links()?, &device())?;
        let stage = Bad {
            weight: Param::from_tensor(Tensor::ones([4], &device())),
            blocks: 0..1,
            fault: Fault::None,
        };
        for (stages, batches, weights) in [(2, 2, 2), (1, 3, 3), (1, 2, 1), (0, 2, 2)] {
            let stages = vec![stage.clone(); stages];
            let batches: Vec<usize> = (0..batches).collect();
            let refused = runtime.step(&stages, &batches, &vec![1.0; weights]);
            let text = refused.expect_err("it does not fit").to_string();
            assert!(
                text.contains("bring what the schedule was made for"),
                "{text}"
            );
        }
        let sent: u64 = runtime
            .links()
            .groups()
            .map(|g| g.traffic().total_sent())
            .sum();
        Ok(sent)
    });
    assert_eq!(outcome.expect("no fault"), [0, 0]);
}
