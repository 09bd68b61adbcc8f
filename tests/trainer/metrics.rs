//! What a small trainer's metrics count and keep.
#![allow(unreachable_pub)]

use std::sync::{Arc, Mutex};

use burn::tensor::TensorReadError;
use burn::train::logger::MetricLogger;
use burn::train::metric::store::{EpochSummary, EventStoreClient, MetricsUpdate, Split};
use burn::train::metric::{
    Adaptor, Metric, MetricDefinition, MetricMetadata, MetricName, NumericEntry, SerializedEntry,
};
use burn::train::{ClassificationOutput, EarlyStoppingStrategy, Interrupter};

/// Items that metrics were given.
#[derive(Clone)]
pub struct CountItems {
    pub items: usize,
    /// Is stopped when so many items of training were counted.
    pub stop: Option<(usize, Interrupter)>,
}

pub struct Counted(usize);

impl Adaptor<Counted> for ClassificationOutput {
    fn adapt(&self) -> Counted {
        Counted(self.targets.dims()[0])
    }
}

impl Metric for CountItems {
    type Input = Counted;

    fn name(&self) -> MetricName {
        Arc::new("Items".into())
    }

    fn update(
        &mut self,
        item: &Counted,
        _metadata: &MetricMetadata,
    ) -> Result<SerializedEntry, TensorReadError> {
        self.items += item.0;
        if let Some((limit, interrupter)) = &self.stop
            && self.items >= *limit
        {
            interrupter.stop(Some("enough items"));
        }
        self.compute()
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        let items = self.items.to_string();
        Ok(SerializedEntry::new(items.clone(), items))
    }

    fn clear(&mut self) {
        self.items = 0;
    }
}

#[derive(Clone)]
pub struct Enough(pub usize);

impl EarlyStoppingStrategy for Enough {
    fn should_stop(&mut self, epoch: usize, _store: &EventStoreClient) -> bool {
        epoch == self.0
    }
}

/// Keeps all that metrics say, as text in which floats have all their bits.
#[derive(Clone, Default)]
pub struct Log(pub Arc<Mutex<Vec<String>>>);

impl MetricLogger for Log {
    fn log(&mut self, update: MetricsUpdate, epoch: usize, split: &Split) {
        let numeric = update.entries_numeric.iter();
        let numeric = numeric.map(|n| format!("{:?} {:?}", n.numeric_entry, n.running_entry));
        let others = update
            .entries
            .iter()
            .map(|e| e.serialized_entry.serialized.clone());
        let words: Vec<String> = numeric.chain(others).collect();
        let line = format!("{split} {epoch}: {}", words.join(" | "));
        self.0.lock().expect("not poisoned").push(line);
    }

    fn read_numeric(
        &mut self,
        _name: &str,
        _epoch: usize,
        _split: &Split,
    ) -> Result<Vec<NumericEntry>, String> {
        Ok(Vec::new())
    }

    fn log_metric_definition(&mut self, _definition: MetricDefinition) {}

    fn log_epoch_summary(&mut self, _summary: EpochSummary) {}
}
