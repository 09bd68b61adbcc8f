//! [`DealtPart`]: a part of a model that a pipeline deals out, whole or split.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;
use burn_dist::collectives::broadcast;
use burn_dist::{DistError, ProcessGroup, Result};
use burn_pipeline::PipelineBlock;

use crate::gpt::{Gpt, GptPart, ParallelGptPart, TokenBatch};

pub(super) trait DealtPart: PipelineBlock<Batch = TokenBatch> {
    /// Puts this part, the one of this number, whole in its place in a model of the same sizes. Collective
    /// over the ranks that share the part.
    fn put_into(&self, gpt: &mut Gpt, number: usize) -> Result<()>;
}

impl DealtPart for GptPart {
    fn put_into(&self, gpt: &mut Gpt, number: usize) -> Result<()> {
        self.put_into(gpt, number);
        Ok(())
    }
}

impl DealtPart for ParallelGptPart {
    fn put_into(&self, gpt: &mut Gpt, number: usize) -> Result<()> {
        self.put_into(gpt, number)
    }
}

/// The values that index `root` has, on every rank. Collective.
pub(super) fn from_root<M: Module>(module: M, root: usize, group: &ProcessGroup) -> Result<M> {
    struct FromRoot<'a>(usize, &'a ProcessGroup, Option<DistError>);
    impl ModuleMapper for FromRoot<'_> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|tensor| {
                let came = broadcast(tensor.clone().inner(), self.0, self.1);
                match came {
                    Ok(came) => Tensor::from_inner(came).set_require_grad(tensor.is_require_grad()),
                    Err(error) => {
                        self.2.get_or_insert(error);
                        tensor
                    }
                }
            })
        }
    }
    let mut mapper = FromRoot(root, group, None);
    let module = module.map(&mut mapper);
    mapper.2.map_or(Ok(module), Err)
}
