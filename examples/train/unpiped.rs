//! [`Unpiped`]: a model all of whose layers every rank has, whole or split.

use std::marker::PhantomData;

use burn::tensor::Device;
use burn_dist::Result;

use super::Arguments;
use super::language_model::LanguageModel;
use super::rank_groups::RankGroups;
use super::strategy::Strategy;
use super::traffic_formula::{bytes_of_all_ranks, bytes_of_split_layers};
use super::training::Training;
use crate::gpt::Gpt;

pub(super) struct Unpiped<'a, M> {
    strategy: Strategy,
    /// How often stage 3 had gathered each unit when the last step was done.
    gathers: Vec<u64>,
    arguments: &'a Arguments,
    groups: &'a RankGroups,
    device: &'a Device,
    model: PhantomData<M>,
}

impl<'a, M: LanguageModel> Unpiped<'a, M> {
    /// Wraps the model as the arguments say.
    pub(super) fn new(
        model: M,
        (arguments, groups, device): (&'a Arguments, &'a RankGroups, &'a Device),
    ) -> Result<(Self, M)> {
        let (strategy, model) = Strategy::parallelize(model, arguments, groups)?;
        let unpiped = Self {
            strategy,
            gathers: Vec::new(),
            arguments,
            groups,
            device,
            model: PhantomData,
        };
        Ok((unpiped, model))
    }
}

impl<M: LanguageModel> Training for Unpiped<'_, M> {
    type Model = M;

    fn step(&mut self, model: M, micro_batches: &[Vec<Vec<u8>>]) -> Result<(Vec<Vec<f32>>, M)> {
        let parts = self.groups.model_parallel();
        let context = (self.arguments, &parts);
        let stepped = self
            .strategy
            .step(model, micro_batches, context, self.device)?;
        self.gathers = self.strategy.gathers();
        Ok(stepped)
    }

    fn formula(&self, model: &M) -> Result<u64> {
        let data_ranks = self.groups.data.size() as u64;
        let ranks = (data_ranks, self.groups.num_replicas() as u64);
        let strategy = &self.strategy;
        let sharded = bytes_of_all_ranks(strategy, model, self.arguments, ranks, &self.gathers);
        let split = bytes_of_split_layers(self.arguments, data_ranks);
        Ok(sharded * self.arguments.tp as u64 + split * data_ranks)
    }

    fn whole(&self, model: &M) -> Result<Gpt> {
        model.whole()
    }
}
