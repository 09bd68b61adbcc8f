//! From Burn's trainer to ranks and back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use burn::data::dataloader::DataLoader;
use burn::tensor::{Bytes, Device};
use burn::train::renderer::CliMetricsRenderer;
use burn::train::{
    EventProcessorTraining, InferenceStep, Interrupter, Interruption, Learner, LearnerModel,
    LearningResult, SupervisedLearningStrategy, SupervisedTrainingEventProcessor, TrainStep,
    TrainingComponents, TrainingError,
};

use super::batch_source::{BatchSource, DeviceLoader, for_process, for_threads};
use super::first_rank::FirstRank;
use super::optimizer_state::optimizer_state;
use super::rank_training::{RankTraining, Schedule, failed};
use super::replica::Replicas;
use super::{BatchSplit, Distributed, RankOutput, RankStart};
use crate::error::{DistError, Result};
use crate::group::ProcessGroup;
use crate::world::{World, launch_threads, panic_text};

type Loader<I> = Arc<dyn DataLoader<I>>;
type Loaders<M> = (
    Loader<<M as TrainStep>::Input>,
    Loader<<M as InferenceStep>::Input>,
);

/// What a rank starts with.
struct Seat<'a, M: LearnerModel> {
    learner: &'a mut Learner<M>,
    /// Where somebody asks for it. Goes when training begins.
    optimizer_state: Option<Bytes>,
    train: BatchSource<<M as TrainStep>::Input>,
    valid: BatchSource<<M as InferenceStep>::Input>,
    first: Option<&'a mut FirstRank<M>>,
}

impl<M: LearnerModel> SupervisedLearningStrategy<M> for Distributed<M>
where
    <M as TrainStep>::Output: RankOutput,
    <M as InferenceStep>::Output: RankOutput,
{
    /// As Burn's, but that ranks other than the first neither render nor summarise.
    fn train(
        &self,
        learner: Learner<M>,
        dataloader_train: Loader<<M as TrainStep>::Input>,
        dataloader_valid: Loader<<M as InferenceStep>::Input>,
        components: TrainingComponents<M>,
    ) -> LearningResult<M> {
        if Self::is_first_rank().unwrap_or(true) {
            let first = OnFirstRank {
                strategy: self,
                end: Mutex::default(),
            };
            let result = first.train(learner, dataloader_train, dataloader_valid, components);
            return first.told(result);
        }
        let interrupter = components.interrupter.clone();
        let starting_epoch = components.checkpoint.unwrap_or(0) + 1;
        let (model, processor) = self.fit(
            components,
            learner,
            dataloader_train,
            dataloader_valid,
            starting_epoch,
        );
        LearningResult {
            model: model.valid(),
            renderer: processor.renderer(),
            interrupted: interrupter.interruption(),
            error: interrupter.error(),
        }
    }

    fn fit(
        &self,
        components: TrainingComponents<M>,
        learner: Learner<M>,
        dataloader_train: Loader<<M as TrainStep>::Input>,
        dataloader_valid: Loader<<M as InferenceStep>::Input>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        let (model, processor, failure) = self.fit_on_ranks(
            components,
            learner,
            (dataloader_train, dataloader_valid),
            starting_epoch,
        );
        if let Some(failure) = failure {
            eprintln!("training ended: {failure}");
        }
        (model, processor)
    }
}

impl<M: LearnerModel> Distributed<M>
where
    <M as TrainStep>::Output: RankOutput,
    <M as InferenceStep>::Output: RankOutput,
{
    /// Also what ended training on this rank, which the interrupter knows too.
    fn fit_on_ranks(
        &self,
        components: TrainingComponents<M>,
        mut learner: Learner<M>,
        (dataloader_train, dataloader_valid): Loaders<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>, Option<DistError>) {
        let interrupter = components.interrupter.clone();
        let device = self.device_of(&learner);
        let schedule = Schedule {
            epochs: starting_epoch..=components.num_epochs,
            accumulation: components.grad_accumulation.unwrap_or(1),
            last_round: self.last_round,
            train_items: dataloader_train.num_items(),
            valid_items: dataloader_valid.num_items(),
        };
        let mut first = FirstRank {
            processor: components.event_processor,
            checkpointer: components.checkpointer,
            early_stopping: components.early_stopping,
            event_store: components.event_store,
            interrupter: interrupter.clone(),
            device: device.clone().inner(),
        };
        learner.fork(&device);
        let train = DeviceLoader::new(dataloader_train, &device);
        let valid = DeviceLoader::new(dataloader_valid, &device.clone().inner());
        let trained = self.check().and_then(|()| {
            let job = Job {
                strategy: self,
                schedule,
                interrupter: &interrupter,
                device: &device,
            };
            let state = match &self.parallelism {
                Some(p) if p.reads_optimizer_state() => {
                    optimizer_state(&learner, &first.event_store)?
                }
                _ => None,
            };
            match World::is_launched() {
                true => job.as_process(&mut learner, state, &mut first, &train, &valid),
                false => job.as_threads(&mut learner, state, &mut first, &train, &valid),
            }
        });
        let failure = trained.err();
        if let Some(failure) = &failure {
            interrupter.fail(match failure.clone() {
                DistError::Rank { rank, problem } => failed(rank, problem),
                failure => failed(0, failure.to_string()),
            });
        }
        (learner.model(), first.processor, failure)
    }
}

/// How training ended. A dashboard that closes makes the interrupter forget it.
#[derive(Default)]
struct End {
    interrupted: Option<Interruption>,
    error: Option<Arc<TrainingError>>,
    failure: Option<DistError>,
}

/// The strategy with Burn's own frame around it: the dashboard's start and end, and the summary.
struct OnFirstRank<'a, M> {
    strategy: &'a Distributed<M>,
    end: Mutex<End>,
}

impl<M: LearnerModel> OnFirstRank<'_, M> {
    /// With the end that training had. A dashboard of a training that failed goes, so that the cause is seen.
    fn told(self, mut result: LearningResult<M>) -> LearningResult<M> {
        let end = self.end.into_inner();
        let end = end.expect("invariant: no panic under this lock");
        result.error = result.error.or(end.error);
        result.interrupted = match result.error {
            Some(_) => None,
            None => result.interrupted.or(end.interrupted),
        };
        if result.error.is_some() {
            result.renderer = Box::new(CliMetricsRenderer::new());
        }
        if let Some(failure) = end.failure {
            eprintln!("training ended: {failure}");
        }
        result
    }
}

impl<M: LearnerModel> SupervisedLearningStrategy<M> for OnFirstRank<'_, M>
where
    <M as TrainStep>::Output: RankOutput,
    <M as InferenceStep>::Output: RankOutput,
{
    fn fit(
        &self,
        components: TrainingComponents<M>,
        learner: Learner<M>,
        dataloader_train: Loader<<M as TrainStep>::Input>,
        dataloader_valid: Loader<<M as InferenceStep>::Input>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        let interrupter = components.interrupter.clone();
        let (model, processor, failure) = self.strategy.fit_on_ranks(
            components,
            learner,
            (dataloader_train, dataloader_valid),
            starting_epoch,
        );
        let end = self.end.lock();
        *end.expect("invariant: no panic under this lock") = End {
            interrupted: interrupter.interruption(),
            error: interrupter.error(),
            failure,
        };
        (model, processor)
    }
}

impl<M: LearnerModel> Distributed<M> {
    fn device_of(&self, learner: &Learner<M>) -> Device {
        let of_model = || learner.model().devices().into_iter().next();
        let device = self.device.clone().or_else(of_model).unwrap_or_default();
        let device = match device.is_autodiff() {
            true => device,
            false => device.autodiff(),
        };
        match self.checkpointing {
            true => device.gradient_checkpointing(),
            false => device,
        }
    }
}

/// One training.
struct Job<'a, M> {
    strategy: &'a Distributed<M>,
    schedule: Schedule,
    interrupter: &'a Interrupter,
    device: &'a Device,
}

impl<M: LearnerModel> Job<'_, M>
where
    <M as TrainStep>::Output: RankOutput,
    <M as InferenceStep>::Output: RankOutput,
{
    fn as_threads(
        &self,
        learner: &mut Learner<M>,
        optimizer_state: Option<Bytes>,
        first: &mut FirstRank<M>,
        train: &DeviceLoader<<M as TrainStep>::Input>,
        valid: &DeviceLoader<<M as InferenceStep>::Input>,
    ) -> Result<()> {
        let ranks = self.strategy.ranks;
        let split = self.strategy.split.unwrap_or(BatchSplit::Batches);
        let mut others: Vec<Learner<M>> = (1..ranks).map(|_| learner.clone()).collect();
        let learners = std::iter::once(learner).chain(&mut others);
        let firsts = std::iter::once(Some(first)).chain((1..ranks).map(|_| None));
        let sources = for_threads(train, split, ranks)?.into_iter();
        let sources = sources.zip(for_threads(valid, split, ranks)?);
        let states = std::iter::repeat_n(optimizer_state, ranks);
        let seats: Vec<_> = learners
            .zip(firsts)
            .zip(states)
            .zip(sources)
            .map(|(((learner, first), optimizer_state), (train, valid))| {
                Mutex::new(Some(Seat {
                    learner,
                    optimizer_state,
                    train,
                    valid,
                    first,
                }))
            })
            .collect();
        launch_threads(ranks, self.strategy.options, |world| {
            let seat = seats[world.rank()].lock();
            let seat = seat.expect("invariant: no panic under this lock").take();
            self.rank(&world, seat.expect("invariant: each rank starts once"))
        })
        .map(drop)
    }

    fn as_process(
        &self,
        learner: &mut Learner<M>,
        optimizer_state: Option<Bytes>,
        first: &mut FirstRank<M>,
        train: &DeviceLoader<<M as TrainStep>::Input>,
        valid: &DeviceLoader<<M as InferenceStep>::Input>,
    ) -> Result<()> {
        let world = World::from_env_with(self.strategy.options)?;
        let (rank, ranks) = (world.rank(), world.world_size());
        if let Some(seed) = self.strategy.seed {
            // Neighbouring seeds give unrelated streams in Burn's generators.
            self.device.seed(seed.wrapping_add(rank as u64));
        }
        let split = self.strategy.split.unwrap_or(BatchSplit::Slices);
        let seat = Seat {
            learner,
            optimizer_state,
            train: for_process(train, split, rank, ranks)?,
            valid: for_process(valid, split, rank, ranks)?,
            first: (rank == 0).then_some(first),
        };
        self.rank(&world, seat)
    }

    /// Trains on one rank; when it fails, the others hear why.
    fn rank(&self, world: &World, seat: Seat<'_, M>) -> Result<()> {
        let group = world.whole()?;
        let outcome = catch_unwind(AssertUnwindSafe(|| self.train(&group, seat)));
        let outcome = outcome.unwrap_or_else(|panic| {
            Err(DistError::Rank {
                rank: world.rank(),
                problem: format!("it panicked: {}", panic_text(&*panic)),
            })
        });
        if let Err(error) = &outcome {
            group.abort(error.clone());
        }
        outcome
    }

    fn train(&self, group: &ProcessGroup, seat: Seat<'_, M>) -> Result<()> {
        self.check_data(group)?;
        let model = seat.learner.model();
        let model = match &self.strategy.prepare {
            Some(prepare) => prepare(model, group),
            None => model,
        };
        let parallelism = self.strategy.parallelism.as_deref();
        let replica = parallelism.unwrap_or(&Replicas).start(RankStart {
            learner: &mut *seat.learner,
            model,
            group,
            settings: self.strategy.settings,
            optimizer_state: seat.optimizer_state,
        })?;
        RankTraining {
            group: group.clone(),
            schedule: self.schedule.clone(),
            learner: seat.learner,
            replica,
            train: seat.train,
            valid: seat.valid,
            interrupter: self.interrupter.clone(),
            returns_model: seat.first.is_some() || World::is_launched(),
            first: seat.first,
        }
        .run()
    }

    /// All ranks have the same data, and there is some.
    fn check_data(&self, group: &ProcessGroup) -> Result<()> {
        let schedule = &self.schedule;
        let own = vec![
            schedule.train_items as u64,
            schedule.valid_items as u64,
            *schedule.epochs.start() as u64,
            *schedule.epochs.end() as u64,
            schedule.accumulation as u64,
        ];
        let all = group.all_gather_values(own)?;
        if let Some(other) = (0..all.len()).find(|&other| all[other] != all[0]) {
            return Err(DistError::config(
                format!(
                    "rank {}: items for training and validation, first and last epoch, accumulation are {:?} on rank {} and {:?} on rank {}",
                    group.rank(),
                    all[0],
                    group.ranks()[0],
                    all[other],
                    group.ranks()[other]
                ),
                "give all ranks the same datasets and settings",
            ));
        }
        match schedule.train_items {
            0 => Err(DistError::config(
                format!("rank {}: the training dataset has no items", group.rank()),
                "give one with at least one item",
            )),
            _ => Ok(()),
        }
    }
}
