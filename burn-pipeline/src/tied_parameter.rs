//! [`TiedParameter`]: one parameter that two stages use.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn_dist::collectives::{all_reduce, broadcast};
use burn_dist::communicator::ReduceOp;
use burn_dist::data_parallel::parameter_hash;
use burn_dist::{DistError, ProcessGroup, Result};

/// A parameter of which two ranks of a pipeline hold a copy each, as an embedding whose weight is the head's
/// too. Each use's gradients are added up over micro-batches in its stage, then both sums are added: both
/// ranks have the same bits, and with the same optimizer the copies stay equal.
///
/// *What moves* per step: the gradient, its bytes once from each of the two. (Megatron-LM, arXiv 2104.04473,
/// keeps the two embeddings alike in this way.)
///
/// A rank that holds both uses needs none of this: it uses one `Param` twice.
#[derive(Debug, Clone)]
pub struct TiedParameter {
    group: ProcessGroup,
    id: ParamId,
}

impl TiedParameter {
    /// Between the two ranks of `group`, the one of the earlier stage first. `id` is that of this rank's copy:
    /// identifiers differ from rank to rank. Local.
    ///
    /// # Errors
    /// [`DistError::Config`] if the group is not of two ranks.
    pub fn new(group: &ProcessGroup, id: ParamId) -> Result<Self> {
        if group.size() != 2 {
            return Err(DistError::config(
                format!(
                    "rank {}, group {}: a tied parameter between {} ranks",
                    group.rank(),
                    group.name(),
                    group.size()
                ),
                "make a group of the two ranks that use it: world.group(\"tied\", &[first, last])",
            ));
        }
        Ok(Self {
            group: group.clone(),
            id,
        })
    }

    /// The identifier of this rank's copy.
    pub fn id(&self) -> ParamId {
        self.id
    }

    /// Whether this rank's copy is the one that counts in norms, checkpoints and numbers of parameters: that
    /// of the earlier stage. The other's rank tells a norm with
    /// `ModelParallel::counted_elsewhere(tied.id())`.
    pub fn counts(&self) -> bool {
        self.group.index() == 0
    }

    /// The earlier stage's values in both copies. Collective: a broadcast.
    ///
    /// # Errors
    /// [`DistError::Config`] if the model has no such parameter; what the group met, as for copies of unequal
    /// shapes.
    pub fn share<M: Module>(&self, model: M) -> Result<M> {
        struct Share<'a>(&'a TiedParameter, Option<DistError>);
        impl ModuleMapper for Share<'_> {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                if param.id != self.0.id {
                    return param;
                }
                param.map(
                    |own| match broadcast(own.clone().inner(), 0, &self.0.group) {
                        Ok(values) => {
                            Tensor::from_inner(values).set_require_grad(own.is_require_grad())
                        }
                        Err(error) => {
                            self.1.get_or_insert(error);
                            own
                        }
                    },
                )
            }
        }
        self.compare(&self.describe(&model, false)?)?;
        let mut share = Share(self, None);
        let model = model.map(&mut share);
        share.1.map_or(Ok(model), Err)
    }

    /// Compares the copies' shapes, element types and bits. Collective.
    ///
    /// # Errors
    /// [`DistError::Config`] if the model has no such parameter; [`DistError::Replica`] on both ranks if the
    /// copies differ; else what the group met.
    pub fn check<M: Module>(&self, model: &M) -> Result<()> {
        self.compare(&self.describe(model, true)?)
    }

    fn compare(&self, own: &str) -> Result<()> {
        let texts = self.group.all_gather_text(own)?;
        let other = 1 - self.group.index();
        match texts[other] == own {
            true => Ok(()),
            false => Err(DistError::Replica {
                rank: self.group.rank(),
                group: self.group.name().into(),
                differing: self.group.ranks()[other],
                expected: format!("tied parameter {own}"),
                got: texts[other].clone(),
                hint: "start both copies alike (TiedParameter::share), add their gradients in every step, and give both the same optimizer"
                    .into(),
            }),
        }
    }

    /// This rank's copy in words, with a hash of its values if asked for.
    fn describe<M: Module>(&self, model: &M, with_values: bool) -> Result<String> {
        struct Find(ParamId, bool, Option<String>);
        impl ModuleVisitor for Find {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if param.id != self.0 {
                    return;
                }
                let tensor = param.base();
                let kind = match tensor.is_require_grad() {
                    true => "trained",
                    false => "frozen",
                };
                let mut words = format!("{:?} {:?}, {kind}", tensor.dims(), tensor.dtype());
                if self.1 {
                    words += &format!(", with hash {}", parameter_hash(param));
                }
                self.2 = Some(words);
            }
        }
        let mut find = Find(self.id, with_values, None);
        model.visit(&mut find);
        find.2.ok_or_else(|| {
            DistError::config(
                format!(
                    "rank {}: this rank's stages have no parameter {}, which is said to be tied",
                    self.group.rank(),
                    self.id
                ),
                "take the identifier from the stage's own parameter",
            )
        })
    }

    /// The gradients of a step ([`PipelineStep`](crate::PipelineStep)), that of this parameter with the other
    /// use's added. Before they go to replicas and to the optimizer. Collective: an all_reduce.
    ///
    /// # Errors
    /// [`DistError::Config`] if the model has no such parameter; else what the group met.
    pub fn add<M: Module>(&self, gradients: GradientsParams, model: &M) -> Result<GradientsParams> {
        struct Add<'a> {
            tied: &'a TiedParameter,
            gradients: GradientsParams,
            outcome: Option<Result<()>>,
        }
        impl Add<'_> {
            fn add<const D: usize>(&mut self, param: &Param<Tensor<D>>) -> Result<()> {
                let own = self.gradients.remove::<D>(param.id);
                // One that no loss reaches takes part with zeros.
                let own = own.unwrap_or_else(|| param.base().inner().zeros_like());
                let sum = all_reduce(own, ReduceOp::Sum, &self.tied.group)?;
                self.gradients.register(param.id, sum);
                Ok(())
            }
        }
        impl ModuleVisitor for Add<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let trained = param.base().is_require_grad();
                if param.id == self.tied.id && self.outcome.is_none() {
                    self.outcome = Some(if trained { self.add(param) } else { Ok(()) });
                }
            }
        }
        let mut add = Add {
            tied: self,
            gradients,
            outcome: None,
        };
        model.visit(&mut add);
        match add.outcome {
            Some(outcome) => outcome.map(|()| add.gradients),
            None => self.describe(model, false).map(|_| add.gradients),
        }
    }
}
