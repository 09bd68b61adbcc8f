//! From Burn's trainer to ranks and back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use burn::data::dataloader::DataLoader;
use burn::tensor::{Bytes, Device, GradientCheckpointingStrategy};
use burn::train::{
    EventProcessorTraining, InferenceStep, Interrupter, Learner, LearnerModel, LearningResult,
    SupervisedLearningStrategy, SupervisedTrainingEventProcessor, TrainStep, TrainingComponents,
};

use super::batch_source::{BatchSource, DeviceLoader, for_process, for_threads};
use super::first_rank::{FirstRank, Shared};
use super::on_first_rank::OnFirstRank;
use super::optimizer_state::optimizer_state;
use super::rank_training::{RankTraining, Schedule, failed, named};
use super::replica::Replicas;
use super::{BatchSplit, Distributed, RankOutput, RankStart};
use crate::error::{DistError, Result};
use crate::group::ProcessGroup;
use crate::world::{World, launch_detached, launched_rank, panic_text};

pub(super) type Loader<I> = Arc<dyn DataLoader<I>>;
pub(super) type Loaders<M> = (
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
    first: Option<Shared<FirstRank<M>>>,
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
            let first = OnFirstRank::new(self);
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
    pub(super) fn fit_on_ranks(
        &self,
        components: TrainingComponents<M>,
        mut learner: Learner<M>,
        (dataloader_train, dataloader_valid): Loaders<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>, Option<String>) {
        let interrupter = components.interrupter.clone();
        let device = self.device_of(&learner);
        let schedule = Schedule {
            epochs: starting_epoch..=components.num_epochs,
            accumulation: components.grad_accumulation.unwrap_or(1),
            last_round: self.last_round,
            train_items: dataloader_train.num_items(),
            valid_items: dataloader_valid.num_items(),
        };
        let first = FirstRank {
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
        let event_store = first.event_store.clone();
        let (learner, first) = (Shared::new(learner), Shared::new(first));
        let trained = self.check().and_then(|()| {
            let job = Job {
                strategy: self.clone(),
                schedule,
                interrupter: interrupter.clone(),
                device: device.clone(),
            };
            let state = match &self.parallelism {
                Some(p) if p.reads_optimizer_state() => {
                    learner.with(|learner| optimizer_state(learner, &event_store))?
                }
                _ => None,
            };
            match World::is_launched() {
                true => job.on_process(&learner, state, &first, &train, &valid),
                false => job.on_threads(&learner, state, &first, &train, &valid),
            }
        });
        let failure = trained.err().map(|failure| {
            let of_process = launched_rank().ok().flatten();
            let (rank, problem) = match failure {
                DistError::Rank { rank, problem } => (Some(rank), problem),
                failure => (of_process, failure.to_string()),
            };
            let text = rank.map_or(problem.clone(), |rank| named(rank, &problem));
            interrupter.fail(failed(rank.unwrap_or(0), text.clone()));
            text
        });
        let first = first.take().expect("invariant: nobody else takes it");
        let learner = learner.take().expect("invariant: it was put back");
        (learner.model(), first.processor, failure)
    }
}

impl<M: LearnerModel> Distributed<M> {
    fn device_of(&self, learner: &Learner<M>) -> Device {
        let of_model = learner.model().devices().into_iter().next();
        let of_model = of_model.unwrap_or_default();
        // Of batches; a model that moves keeps its own, and both must be alike.
        let strategy = of_model.gradient_checkpointing_strategy();
        let device = self.device.clone().unwrap_or(of_model);
        let device = device.without_autodiff().autodiff();
        match strategy {
            Some(GradientCheckpointingStrategy::Balanced) => device.gradient_checkpointing(),
            _ => device,
        }
    }
}

/// One training.
struct Job<M> {
    strategy: Distributed<M>,
    schedule: Schedule,
    interrupter: Interrupter,
    device: Device,
}

impl<M: LearnerModel> Job<M>
where
    <M as TrainStep>::Output: RankOutput,
    <M as InferenceStep>::Output: RankOutput,
{
    /// The learner is afterwards that of the first rank, unless it hangs.
    fn on_threads(
        self,
        learner: &Shared<Learner<M>>,
        optimizer_state: Option<Bytes>,
        first: &Shared<FirstRank<M>>,
        train: &DeviceLoader<<M as TrainStep>::Input>,
        valid: &DeviceLoader<<M as InferenceStep>::Input>,
    ) -> Result<()> {
        let (ranks, options) = (self.strategy.ranks, self.strategy.options);
        let split = self.strategy.split.unwrap_or(BatchSplit::Batches);
        let sources = for_threads(train, split, ranks)?.into_iter();
        let sources = sources.zip(for_threads(valid, split, ranks)?);
        // Moved, as a copy would keep the values that training starts from.
        let own = learner.take().expect("invariant: it is there");
        let mut learners: Vec<Learner<M>> = (1..ranks).map(|_| own.clone()).collect();
        learners.insert(0, own);
        let states = std::iter::repeat_n(optimizer_state, ranks);
        let seats = learners.into_iter().zip(states).zip(sources);
        let seats: Vec<_> = seats.map(Shared::new).collect();
        let ended: Vec<Shared<Learner<M>>> = (0..ranks).map(|_| Shared::empty()).collect();
        let (of_ranks, back, first) = (seats.clone(), ended.clone(), first.clone());
        let trained = launch_detached(ranks, options, move |world| {
            let rank = world.rank();
            let seat = of_ranks[rank].take();
            let ((mut learner, optimizer_state), (train, valid)) =
                seat.expect("invariant: each rank starts once");
            let seat = Seat {
                learner: &mut learner,
                optimizer_state,
                train,
                valid,
                first: (rank == 0).then(|| first.clone()),
            };
            let outcome = self.rank(&world, seat);
            back[rank].put(learner);
            outcome
        });
        let back = ended.iter().find_map(Shared::take);
        let not_started = || seats.iter().find_map(Shared::take).map(|((own, _), _)| own);
        let back = back.or_else(not_started);
        learner.put(back.expect("invariant: some rank ended, or did not start"));
        trained.map(drop)
    }

    fn on_process(
        self,
        learner: &Shared<Learner<M>>,
        optimizer_state: Option<Bytes>,
        first: &Shared<FirstRank<M>>,
        train: &DeviceLoader<<M as TrainStep>::Input>,
        valid: &DeviceLoader<<M as InferenceStep>::Input>,
    ) -> Result<()> {
        let world = World::from_env_with(self.strategy.options)?;
        let (rank, ranks) = (world.rank(), world.world_size());
        if let Some(seed) = self.strategy.seed {
            // Neighbouring seeds give unrelated streams in Burn's generators.
            self.device.seed(seed.wrapping_add(rank as u64));
        }
        let split = match self.strategy.split {
            // Its slice is the whole, which has another order.
            None if ranks == 1 => BatchSplit::Batches,
            split => split.unwrap_or(BatchSplit::Slices),
        };
        let sources = (
            for_process(train, split, rank, ranks)?,
            for_process(valid, split, rank, ranks)?,
        );
        let mut own = learner.take().expect("invariant: it is there");
        let seat = Seat {
            learner: &mut own,
            optimizer_state,
            train: sources.0,
            valid: sources.1,
            first: (rank == 0).then(|| first.clone()),
        };
        let outcome = self.rank(&world, seat);
        learner.put(own);
        outcome
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
