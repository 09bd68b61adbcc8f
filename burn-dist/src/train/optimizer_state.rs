//! The state of a learner's optimizer, which a `Learner` gives to checkpointers only.

use std::sync::{Arc, Mutex};

use burn::optim::OptimizerRecord;
use burn::tensor::Bytes;
use burn::train::checkpoint::{
    AsyncCheckpointer, Checkpoint, Checkpointer, CheckpointerError, CheckpointingAction,
    CheckpointingStrategy,
};
use burn::train::metric::store::EventStoreClient;
use burn::train::{Learner, LearnerModel, LearningCheckpointer};

use crate::error::{DistError, Result};

/// Where others write a file: takes a record, or lets it go.
struct Keep<R>(Option<Arc<Mutex<Option<R>>>>);

impl<R: Checkpoint> Checkpointer<R> for Keep<R> {
    fn save(&self, _epoch: usize, record: R) -> std::result::Result<(), CheckpointerError> {
        if let Some(kept) = &self.0 {
            let mut kept = kept.lock().expect("invariant: no panic under this lock");
            *kept = Some(record);
        }
        Ok(())
    }

    fn delete(&self, _epoch: usize) -> std::result::Result<(), CheckpointerError> {
        Ok(())
    }

    fn restore(&self, epoch: usize) -> std::result::Result<R, CheckpointerError> {
        Err(CheckpointerError::Unknown(format!(
            "there is no file of epoch {epoch}"
        )))
    }
}

struct Now;

impl CheckpointingStrategy for Now {
    fn checkpointing(
        &mut self,
        _epoch: usize,
        _collector: &EventStoreClient,
    ) -> Vec<CheckpointingAction> {
        vec![CheckpointingAction::Save]
    }
}

/// The state as a record's bytes, which clones share; `None` if the optimizer has none yet. Copies the model's
/// parameters on the way.
pub(super) fn optimizer_state<M: LearnerModel>(
    learner: &Learner<M>,
    store: &EventStoreClient,
) -> Result<Option<Bytes>> {
    let kept = Arc::new(Mutex::new(None::<OptimizerRecord>));
    let mut checkpointer = LearningCheckpointer::<M>::new(
        AsyncCheckpointer::new(Keep(None)),
        AsyncCheckpointer::new(Keep(Some(kept.clone()))),
        AsyncCheckpointer::new(Keep(None)),
        Box::new(Now),
    );
    checkpointer.checkpoint(learner, 0, store);
    // Waits for its threads.
    drop(checkpointer);
    let record = kept
        .lock()
        .expect("invariant: no panic under this lock")
        .take();
    match record {
        Some(record) if !record.is_empty() => {
            let bytes = record.into_bytes().map_err(|error| {
                DistError::config(
                    format!("the optimizer's state could not be read: {error}"),
                    "start from a checkpoint of this version of Burn",
                )
            })?;
            Ok(Some(bytes.shared()))
        }
        _ => Ok(None),
    }
}
