//! [`BatchSource`]: the batches of one rank, read ahead by a thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use burn::data::dataloader::{DataLoader, DataLoaderIterator};
use burn::data::dataset::DatasetError;
use burn::tensor::Device;

use super::BatchSplit;
use crate::error::{DistError, Result};
use crate::world::panic_text;

/// Batches that wait for a rank.
const AHEAD: usize = 2;

/// A batch and how many items it has.
#[derive(Debug)]
pub(super) struct Batch<I> {
    pub(super) input: I,
    pub(super) items: usize,
}

/// Why there is no batch.
#[derive(Debug)]
pub(super) enum SourceFailure {
    Dataset(DatasetError),
    /// The loader panicked.
    Panic(String),
}

impl std::fmt::Display for SourceFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dataset(error) => write!(f, "the data loader failed: {error}"),
            Self::Panic(text) => write!(f, "the data loader panicked: {text}"),
        }
    }
}

enum Message<I> {
    Batch(Batch<I>),
    End,
    Failure(SourceFailure),
}

/// One rank's batches, epoch after epoch.
pub(super) struct BatchSource<I> {
    /// Starts an epoch; one of the ranks that share a loader has it.
    start: Option<Sender<()>>,
    batches: Receiver<Message<I>>,
    /// Whether the epoch's batches are not all taken yet.
    open: bool,
    /// For batches that are computed again.
    again: Arc<dyn DataLoader<I>>,
}

impl<I> BatchSource<I> {
    /// To be called by each rank before it takes an epoch's first batch.
    pub(super) fn begin_epoch(&mut self) {
        self.open = true;
        if let Some(start) = &self.start {
            // A thread that is gone is noticed with the first batch.
            start.send(()).ok();
        }
    }

    /// The next batch; `None` at the end of the epoch.
    pub(super) fn next(&mut self) -> std::result::Result<Option<Batch<I>>, SourceFailure> {
        if !self.open {
            return Ok(None);
        }
        let message = self.batches.recv();
        self.open = matches!(message, Ok(Message::Batch(_)));
        match message {
            Ok(Message::Batch(batch)) => Ok(Some(batch)),
            Ok(Message::End) => Ok(None),
            Ok(Message::Failure(failure)) => Err(failure),
            Err(_) => Err(SourceFailure::Panic("its thread has ended".into())),
        }
    }

    /// Passes over the epoch's batches that nobody wants.
    pub(super) fn end_epoch(&mut self) {
        while self.open {
            self.next().ok();
        }
    }

    /// One of the first batches, number `rank` if there are as many.
    pub(super) fn again(
        &self,
        rank: usize,
    ) -> std::result::Result<Option<Batch<I>>, SourceFailure> {
        let read = || {
            let mut iterator = self.again.iter();
            let mut first = iterator.next();
            for _ in 0..rank {
                match iterator.next() {
                    Some(next) => first = Some(next),
                    None => break,
                }
            }
            first.transpose()
        };
        match catch_unwind(AssertUnwindSafe(read)) {
            Ok(Ok(input)) => Ok(input.map(|input| Batch { input, items: 0 })),
            Ok(Err(error)) => Err(SourceFailure::Dataset(error)),
            Err(panic) => Err(SourceFailure::Panic(panic_text(&*panic))),
        }
    }
}

/// A trainer's loader on this process's device.
pub(super) struct DeviceLoader<I> {
    /// One copy, made first: it shuffles as that of a trainer on one device.
    loader: Arc<dyn DataLoader<I>>,
    /// Where others come from.
    given: Arc<dyn DataLoader<I>>,
    device: Device,
}

impl<I: Send + 'static> DeviceLoader<I> {
    pub(super) fn new(given: Arc<dyn DataLoader<I>>, device: &Device) -> Self {
        Self {
            loader: given.to_device(device),
            given,
            device: device.clone(),
        }
    }

    /// All items, in an order of its own.
    fn again(&self) -> Arc<dyn DataLoader<I>> {
        let all = self.given.slice(0, self.given.num_items());
        all.to_device(&self.device)
    }
}

/// For ranks that are threads of this process, in rank order.
pub(super) fn for_threads<I: Send + 'static>(
    loader: &DeviceLoader<I>,
    split: BatchSplit,
    ranks: usize,
) -> Result<Vec<BatchSource<I>>> {
    match split {
        BatchSplit::Batches => shared(loader, loader.loader.clone(), ranks, 0..ranks),
        BatchSplit::Slices => (0..ranks).map(|rank| slice(loader, rank, ranks)).collect(),
    }
}

/// For the one rank of this process.
pub(super) fn for_process<I: Send + 'static>(
    loader: &DeviceLoader<I>,
    split: BatchSplit,
    rank: usize,
    ranks: usize,
) -> Result<BatchSource<I>> {
    match split {
        BatchSplit::Batches => {
            let mut sources = shared(loader, loader.loader.clone(), ranks, rank..rank + 1)?;
            Ok(sources.pop().expect("invariant: one was asked for"))
        }
        BatchSplit::Slices => slice(loader, rank, ranks),
    }
}

fn slice<I: Send + 'static>(
    loader: &DeviceLoader<I>,
    rank: usize,
    ranks: usize,
) -> Result<BatchSource<I>> {
    let all = &loader.loader;
    let items = all.num_items();
    let part = all.slice(rank * items / ranks, (rank + 1) * items / ranks);
    let mut sources = shared(loader, part, 1, 0..1)?;
    Ok(sources.pop().expect("invariant: one was asked for"))
}

/// Sources of some of the ranks that share the order of a copy of a loader.
fn shared<I: Send + 'static>(
    given: &DeviceLoader<I>,
    loader: Arc<dyn DataLoader<I>>,
    ranks: usize,
    served: std::ops::Range<usize>,
) -> Result<Vec<BatchSource<I>>> {
    let (start, starts) = channel();
    let (senders, receivers): (Vec<_>, Vec<_>) =
        served.clone().map(|_| sync_channel(AHEAD)).unzip();
    let dealer = Dealer {
        loader,
        ranks,
        served: served.start,
        senders,
    };
    std::thread::Builder::new()
        .name("batches".into())
        .spawn(move || dealer.run(starts))
        .map_err(|error| {
            DistError::config(
                format!("the thread that reads batches did not start: {error}"),
                "raise the limit of threads, or start fewer ranks on this host",
            )
        })?;
    let mut start = Some(start);
    let sources = receivers.into_iter().map(|batches| BatchSource {
        start: start.take(),
        batches,
        open: false,
        again: given.again(),
    });
    Ok(sources.collect())
}

/// Reads a loader and gives each rank its batches.
struct Dealer<I> {
    loader: Arc<dyn DataLoader<I>>,
    ranks: usize,
    /// The first rank that is served; those after it are as many as there are senders.
    served: usize,
    senders: Vec<SyncSender<Message<I>>>,
}

/// Nobody takes batches any more.
struct Hangup;

impl<I> Dealer<I> {
    fn run(self, starts: Receiver<()>) {
        while starts.recv().is_ok() {
            let end = match catch_unwind(AssertUnwindSafe(|| self.epoch())) {
                Ok(Ok(())) => || Message::End,
                Ok(Err(Hangup)) => return,
                Err(panic) => {
                    let text = panic_text(&*panic);
                    for sender in &self.senders {
                        let failure = SourceFailure::Panic(text.clone());
                        sender.send(Message::Failure(failure)).ok();
                    }
                    return;
                }
            };
            if self.senders.iter().any(|s| s.send(end()).is_err()) {
                return;
            }
        }
    }

    fn epoch(&self) -> std::result::Result<(), Hangup> {
        let mut iterator = self.loader.iter();
        let before = self.served;
        let after = self.ranks - self.served - self.senders.len();
        loop {
            if before > 0 && iterator.nth(before - 1).is_none() {
                return Ok(());
            }
            for sender in &self.senders {
                match self.next(&mut *iterator) {
                    Some(message) => sender.send(message).map_err(|_| Hangup)?,
                    None => return Ok(()),
                }
            }
            if after > 0 && iterator.nth(after - 1).is_none() {
                return Ok(());
            }
        }
    }

    fn next(&self, iterator: &mut dyn DataLoaderIterator<I>) -> Option<Message<I>> {
        let before = iterator.progress().items_processed;
        Some(match iterator.next()? {
            Ok(input) => Message::Batch(Batch {
                input,
                items: iterator.progress().items_processed - before,
            }),
            Err(error) => Message::Failure(SourceFailure::Dataset(error)),
        })
    }
}
