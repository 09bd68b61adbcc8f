//! [`RankTraining`]: the loop of one rank.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use burn::train::{
    InferenceStep, Interrupter, ItemLazy, Learner, LearnerModel, TrainStep, TrainingError,
};

use super::batch_source::{Batch, BatchSource, SourceFailure};
use super::first_rank::{Counted, FirstRank, Part, Shared};
use super::rank_output::encode;
use super::round::{Round, Wish, Word, meet};
use super::{LastRound, Pass, RankLearner, RankOutput};
use crate::communicator::ReduceOp;
use crate::error::{DistError, Result};
use crate::group::ProcessGroup;

/// What is the same on all ranks.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    pub(super) epochs: std::ops::RangeInclusive<usize>,
    /// Micro-steps of an optimizer step.
    pub(super) accumulation: usize,
    pub(super) last_round: LastRound,
    /// Items of the datasets.
    pub(super) train_items: usize,
    pub(super) valid_items: usize,
}

/// A rank, its part of the data, and, on the first, what only that has.
pub(super) struct RankTraining<'a, M: LearnerModel> {
    pub(super) group: ProcessGroup,
    pub(super) schedule: Schedule,
    pub(super) learner: &'a mut Learner<M>,
    pub(super) replica: Box<dyn RankLearner<M>>,
    pub(super) train: BatchSource<<M as TrainStep>::Input>,
    pub(super) valid: BatchSource<<M as InferenceStep>::Input>,
    pub(super) interrupter: Interrupter,
    /// Whether the learner's model is the one that training ends with.
    pub(super) returns_model: bool,
    pub(super) first: Option<Shared<FirstRank<M>>>,
}

/// The output of a batch, on its way to the metrics.
#[derive(Default)]
struct Outgoing {
    items: usize,
    output: Option<Vec<u8>>,
}

/// Why an epoch's part is over.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Regularly,
    Early,
}

/// Gradients on the way to a step.
#[derive(Default)]
struct Pending {
    micro_steps: usize,
    /// Ranks that had a batch in the first of them.
    active: usize,
}

impl<M: LearnerModel> RankTraining<'_, M>
where
    <M as TrainStep>::Output: RankOutput,
    <M as InferenceStep>::Output: RankOutput,
{
    /// Trains to the last epoch, or until a rank stops or fails: then all do. Collective.
    ///
    /// # Errors
    /// What the group met. What ended training otherwise is left in the interrupter.
    pub(super) fn run(mut self) -> Result<()> {
        let trained = catch_unwind(AssertUnwindSafe(|| self.train_to_the_end()));
        if !matches!(trained, Ok(Ok(()))) && self.returns_model {
            self.replica.give_up(self.learner);
        }
        trained.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn train_to_the_end(&mut self) -> Result<()> {
        for epoch in self.schedule.epochs.clone() {
            if self.train_epoch(epoch)? == Ended::Early {
                break;
            }
            if self.valid_epoch(epoch)? == Ended::Early || self.end_epoch(epoch)? {
                break;
            }
        }
        let wanted = self.returns_model;
        self.replica.write_back(self.learner, wanted)
    }

    fn train_epoch(&mut self, epoch: usize) -> Result<Ended> {
        let items = self.schedule.train_items;
        if let Some(first) = &self.first {
            first.with(|first| first.start_part(Part::Train, epoch, items));
        }
        self.train.begin_epoch();
        let mut outgoing = Outgoing::default();
        let mut counted = Counted::default();
        let mut pending = Pending::default();
        let mut next = self.train.next();
        let ended = loop {
            let (batch, round) = self.meet(next, std::mem::take(&mut outgoing))?;
            let lr = self.learner.lr_current();
            if let Some(first) = &self.first {
                let outputs = round.outputs;
                first.with(|first| first.count(Part::Train, &mut counted, outputs, items, &lr))?;
            }
            if let Some((rank, wish)) = round.end {
                self.agree(rank, wish);
                break Ended::Early;
            }
            let incomplete = round.active < self.group.size();
            let over = match self.schedule.last_round {
                LastRound::Drop => incomplete,
                _ => round.active == 0,
            };
            if over {
                break Ended::Regularly;
            }
            let counts = batch.is_some();
            let repeats = self.schedule.last_round == LastRound::Repeat;
            let again = match &batch {
                None if repeats || self.replica.needs_equal_passes() => self.again(&self.train)?,
                _ => None,
            };
            let active = match repeats {
                true => self.group.size(),
                false => round.active,
            };
            if pending.micro_steps == 0 {
                pending.active = active;
            }
            pending.micro_steps += 1;
            let batch = batch.or(again);
            // The epoch's last micro-step ends a step too, but that it was the last shows in the next round.
            let batch_items = batch.as_ref().map_or(0, |batch| batch.items);
            let last = pending.micro_steps == self.schedule.accumulation;
            let output =
                self.micro_step(batch, counts || repeats, last.then_some(pending.active))?;
            if last {
                pending = Pending::default();
            }
            outgoing = Outgoing {
                items: batch_items,
                output: output.filter(|_| counts),
            };
            next = self.train.next();
        };
        if ended == Ended::Regularly {
            self.train.end_epoch();
            if pending.micro_steps > 0 {
                self.micro_step(None, false, Some(pending.active))?;
            }
        }
        if let Some(first) = &self.first {
            first.with(|first| first.end_part(Part::Train, epoch));
        }
        Ok(ended)
    }

    /// Forward and backward; `active`: and the optimizer's step.
    fn micro_step(
        &mut self,
        batch: Option<Batch<<M as TrainStep>::Input>>,
        counts: bool,
        active: Option<usize>,
    ) -> Result<Option<Vec<u8>>> {
        let mut input = batch.map(|batch| batch.input);
        let has_input = input.is_some();
        let mut output = None;
        let mut run = |model: &M| {
            let input = input.take().expect("invariant: a pass runs once");
            let made = TrainStep::step(model, input);
            output = Some(made.item);
            made.grads
        };
        let pass = has_input.then_some(Pass {
            run: &mut run,
            counts,
        });
        match active {
            None => self.replica.accumulate(pass)?,
            Some(active) => {
                self.learner.lr_step();
                self.replica.step(self.learner, pass, active)?;
            }
        }
        output.map(sent).transpose()
    }

    /// Equally many forward passes on every rank, since layers may call other ranks; those that only keep
    /// others company are not counted.
    fn valid_epoch(&mut self, epoch: usize) -> Result<Ended> {
        let items = self.schedule.valid_items;
        if let Some(first) = &self.first {
            first.with(|first| first.start_part(Part::Valid, epoch, items));
        }
        let model = self.replica.valid()?;
        let lr = self.learner.lr_current();
        self.valid.begin_epoch();
        let mut outgoing = Outgoing::default();
        let mut counted = Counted::default();
        let mut next = self.valid.next();
        let ended = loop {
            let (batch, round) = self.meet(next, std::mem::take(&mut outgoing))?;
            if let Some(first) = &self.first {
                let outputs = round.outputs;
                first.with(|first| first.count(Part::Valid, &mut counted, outputs, items, &lr))?;
            }
            if let Some((rank, wish)) = round.end {
                self.agree(rank, wish);
                break Ended::Early;
            }
            if round.active == 0 {
                break Ended::Regularly;
            }
            next = match batch {
                Some(batch) => {
                    let output = InferenceStep::step(&model, batch.input);
                    outgoing = Outgoing {
                        items: batch.items,
                        output: Some(sent(output)?),
                    };
                    self.valid.next()
                }
                None => {
                    if let Some(batch) = self.again(&self.valid)? {
                        drop(InferenceStep::step(&model, batch.input));
                    }
                    Ok(None)
                }
            };
        };
        if let Some(first) = &self.first {
            first.with(|first| {
                first.end_part(Part::Valid, epoch);
                if ended == Ended::Regularly {
                    first.end_metrics(epoch);
                }
            });
        }
        Ok(ended)
    }

    /// Checkpoint and early stopping; whether to end.
    fn end_epoch(&mut self, epoch: usize) -> Result<bool> {
        let wish = self.wish();
        let round = meet(
            &self.group,
            Word {
                has_batch: false,
                items: 0,
                output: None,
                wish,
            },
        )?;
        if let Some((rank, wish)) = round.end {
            self.agree(rank, wish);
            return Ok(true);
        }
        let first = self.first.as_ref();
        let writes =
            self.any(first.is_some_and(|first| first.with(|first| first.writes_checkpoints())))?;
        if writes {
            let wanted = self.first.is_some();
            self.replica.write_back(self.learner, wanted)?;
            self.replica.write_back_optimizer(self.learner)?;
        }
        let ends = match &self.first {
            Some(first) => first.with(|first| first.end_epoch(self.learner, epoch)),
            None => false,
        };
        if writes {
            self.replica.let_go(self.learner);
        }
        self.any(ends)
    }

    /// A batch to keep others company with, which are in the middle of a step.
    fn again<I>(&self, source: &BatchSource<I>) -> Result<Option<Batch<I>>> {
        let rank = self.group.rank();
        let again = source.again(self.group.index());
        again.map_err(|failure| DistError::Rank {
            rank,
            problem: failure.to_string(),
        })
    }

    /// Whether it is so on any rank. Collective.
    fn any(&self, here: bool) -> Result<bool> {
        let any = self
            .group
            .all_reduce_values(vec![u32::from(here)], ReduceOp::Max)?;
        Ok(any[0] == 1)
    }

    /// What this rank wants, as its interrupter says.
    fn wish(&self) -> Wish {
        match (self.interrupter.should_stop(), self.interrupter.error()) {
            (false, _) => Wish::Continue,
            (true, Some(error)) => Wish::Fail(words(&error)),
            (true, None) => {
                let reason = self.interrupter.get_message();
                Wish::Stop(reason.unwrap_or_else(|| "no reason given".into()))
            }
        }
    }

    /// Says whether there is a batch, and hears the same of others.
    #[allow(clippy::type_complexity)]
    fn meet<I>(
        &self,
        next: std::result::Result<Option<Batch<I>>, SourceFailure>,
        outgoing: Outgoing,
    ) -> Result<(Option<Batch<I>>, Round)> {
        let batch = match next {
            Ok(batch) => batch,
            Err(failure) => {
                self.interrupter
                    .fail(training_error(self.group.rank(), failure));
                None
            }
        };
        let word = Word {
            has_batch: batch.is_some(),
            items: outgoing.items,
            output: outgoing.output,
            wish: self.wish(),
        };
        Ok((batch, meet(&self.group, word)?))
    }

    /// Ends as that rank does.
    fn agree(&self, rank: usize, wish: Wish) {
        match wish {
            Wish::Continue => {}
            Wish::Stop(reason) if !self.interrupter.should_stop() => {
                self.interrupter.stop(Some(&reason));
            }
            Wish::Stop(_) => {}
            Wish::Fail(message) => {
                if self.interrupter.error().is_none() {
                    self.interrupter.fail(failed(rank, named(rank, &message)));
                }
            }
        }
    }
}

/// An output as it travels.
fn sent<T: RankOutput>(output: T) -> Result<Vec<u8>> {
    let synced = ItemLazy::sync(output).map_err(|error| {
        DistError::config(
            format!("a step's output could not be computed: {error}"),
            "see the device's own message",
        )
    })?;
    Ok(encode(synced.into_parts()))
}

/// A problem with the name of the rank that has it, unless it has that already.
pub(super) fn named(rank: usize, problem: &str) -> String {
    match problem.starts_with("rank ") {
        true => problem.into(),
        false => format!("rank {rank} failed: {problem}"),
    }
}

/// An error without the frame that [`failed`] gave it.
fn words(error: &TrainingError) -> String {
    match error {
        TrainingError::Workers(failures) if failures.len() == 1 => failures[0].message.clone(),
        other => other.to_string(),
    }
}

/// An error of a rank, in the words of Burn's trainer.
pub(super) fn failed(rank: usize, message: String) -> TrainingError {
    TrainingError::Workers(vec![burn::train::train::WorkerFailure {
        device_id: rank,
        message,
    }])
}

fn training_error(rank: usize, failure: SourceFailure) -> TrainingError {
    match failure {
        SourceFailure::Dataset(error) => TrainingError::Dataset(error),
        failure => failed(rank, named(rank, &failure.to_string())),
    }
}
