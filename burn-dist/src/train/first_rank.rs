//! [`FirstRank`]: what only one rank has.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::data::dataloader::Progress;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::tensor::Device;
use burn::train::metric::store::EventStoreClient;
use burn::train::{
    CloneEarlyStoppingStrategy, EventProcessorTraining, Interrupter, Learner, LearnerEvent,
    LearnerModel, LearningCheckpointer, SupervisedTrainingEventProcessor, TrainingItem,
};

use super::RankOutput;
use super::rank_output::decode;
use crate::error::Result;

/// Dashboard, metrics, checkpoints, early stopping.
pub(super) struct FirstRank<M: LearnerModel> {
    pub(super) processor: SupervisedTrainingEventProcessor<M>,
    pub(super) checkpointer: Option<LearningCheckpointer<M>>,
    pub(super) early_stopping: Option<Box<dyn CloneEarlyStoppingStrategy>>,
    pub(super) event_store: Arc<EventStoreClient>,
    pub(super) interrupter: Interrupter,
    /// Where metrics are computed.
    pub(super) device: Device,
}

/// Something that a rank works with and that can be taken from it, should it hang.
pub(super) struct Shared<T>(Arc<Mutex<Option<T>>>);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Shared<T> {
    pub(super) fn new(value: T) -> Self {
        Self(Arc::new(Mutex::new(Some(value))))
    }

    pub(super) fn empty() -> Self {
        Self(Arc::new(Mutex::new(None)))
    }

    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        // A panic in a metric or a checkpointer ends training; what they belong to is given back all the same.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for whoever works with it.
    pub(super) fn take(&self) -> Option<T> {
        self.lock().take()
    }

    pub(super) fn put(&self, value: T) {
        *self.lock() = Some(value);
    }

    /// # Panics
    /// If it was taken: the rank that is here was left behind.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(self
            .lock()
            .as_mut()
            .expect("invariant: only a rank that was left behind has lost it"))
    }
}

/// Which part of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Train,
    Valid,
}

/// How far an epoch's part is, as one device would count.
#[derive(Debug, Default)]
pub(super) struct Counted {
    items: usize,
    batches: usize,
}

type Output<M> = <M as burn::train::TrainStep>::Output;
type Inferred<M> = <M as burn::train::InferenceStep>::Output;

impl<M: LearnerModel> FirstRank<M>
where
    Output<M>: RankOutput,
    Inferred<M>: RankOutput,
{
    fn tell(
        &mut self,
        part: Part,
        train: LearnerEvent<Output<M>>,
        valid: LearnerEvent<Inferred<M>>,
    ) {
        let told = match part {
            Part::Train => self.processor.process_train(train),
            Part::Valid => self.processor.process_valid(valid),
        };
        self.interrupter.fail_on_error(told);
    }

    pub(super) fn start_part(&mut self, part: Part, epoch: usize, items: usize) {
        let (epoch_number, total_items) = (epoch, items);
        self.tell(
            part,
            LearnerEvent::StartSplit {
                epoch_number,
                total_items,
            },
            LearnerEvent::StartSplit {
                epoch_number,
                total_items,
            },
        );
    }

    pub(super) fn end_part(&mut self, part: Part, epoch: usize) {
        self.tell(
            part,
            LearnerEvent::EndSplit(epoch),
            LearnerEvent::EndSplit(epoch),
        );
    }

    /// Counts the outputs of a round's batches, each once.
    pub(super) fn count(
        &mut self,
        part: Part,
        counted: &mut Counted,
        outputs: Vec<(usize, Vec<u8>)>,
        total: usize,
        lr: &ModuleLearningRate,
    ) -> Result<()> {
        for (items, output) in outputs {
            counted.items += items;
            counted.batches += 1;
            let progress = Progress::new(counted.items, total, Some("items".into()));
            let batches = Some(counted.batches);
            let told = match part {
                Part::Train => {
                    let output = decode(&output, &self.device)?;
                    let item = TrainingItem::new(output, progress, batches, Some(lr.clone()));
                    self.processor
                        .process_train(LearnerEvent::ProcessedItem(item))
                }
                Part::Valid => {
                    let output = decode(&output, &self.device)?;
                    let item = TrainingItem::new(output, progress, batches, None);
                    self.processor
                        .process_valid(LearnerEvent::ProcessedItem(item))
                }
            };
            self.interrupter.fail_on_error(told);
        }
        Ok(())
    }

    /// Whether [`end_epoch`](Self::end_epoch) may write a checkpoint.
    pub(super) fn writes_checkpoints(&self) -> bool {
        self.checkpointer.is_some()
    }

    /// All metrics of an epoch are there.
    pub(super) fn end_metrics(&mut self, epoch: usize) {
        let told = self.processor.process_train(LearnerEvent::EndEpoch(epoch));
        self.interrupter.fail_on_error(told);
        if self.checkpointer.is_some() || self.early_stopping.is_some() {
            self.interrupter.fail_on_error(self.processor.flush());
        }
    }

    /// Writes the checkpoint, and tells whether training is to end early.
    pub(super) fn end_epoch(&mut self, learner: &Learner<M>, epoch: usize) -> bool {
        if let Some(checkpointer) = &mut self.checkpointer {
            checkpointer.checkpoint(learner, epoch, &self.event_store);
        }
        let early_stopping = self.early_stopping.as_mut();
        early_stopping.is_some_and(|early| early.should_stop(epoch, &self.event_store))
    }
}
