//! [`BlockStage`]: consecutive blocks of a list, as a stage.

use std::ops::Range;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Bool, Int, Tensor};
use burn_dist::backend::DeferredProducts;
use burn_dist::{DistError, Result};

use crate::{Activation, PipelineBlock, PipelineStage};

/// Consecutive blocks of a model that is a list of blocks.
#[derive(Module, Debug)]
pub struct BlockStage<P> {
    /// This stage's blocks.
    pub blocks: Vec<P>,
    /// The number of the first one in the model.
    first: usize,
    #[module(skip)]
    products: Option<DeferredProducts>,
}

impl<P: PipelineBlock> BlockStage<P> {
    /// This rank's stages, `own`, of a model whose blocks are cut as `cut` says. The blocks come one by one:
    /// each one's parameters are drawn in their turn, and it goes again if it is another rank's. So ranks
    /// that seed alike hold parts of one model, the one that a single rank would draw, and none ever holds
    /// more than its own and one block.
    ///
    /// # Errors
    /// [`DistError::Config`] if the cut is not of as many blocks, or has no such stage.
    pub fn deal(
        blocks: impl IntoIterator<Item = Result<P>>,
        cut: &[Range<usize>],
        own: &[usize],
    ) -> Result<Vec<Self>> {
        if let Some(stage) = own.iter().find(|&&stage| stage >= cut.len()) {
            return Err(DistError::config(
                format!("stage {stage} of a model that is cut in {}", cut.len()),
                "cut it in as many stages as the schedule has",
            ));
        }
        let mut stages: Vec<Self> = own
            .iter()
            .map(|&stage| Self {
                blocks: Vec::new(),
                first: cut[stage].start,
                products: None,
            })
            .collect();
        let mut count = 0;
        for (number, block) in blocks.into_iter().enumerate() {
            let block = block?;
            block.visit(&mut Draw);
            let mut owner = stages.iter_mut().zip(own);
            if let Some((stage, _)) = owner.find(|(_, own)| cut[**own].contains(&number)) {
                stage.blocks.push(block);
            }
            count = number + 1;
        }
        let cut_blocks = cut.iter().map(Range::len).sum::<usize>();
        if cut_blocks != count {
            return Err(DistError::config(
                format!("a model of {count} blocks is cut as {cut:?}"),
                "cut as many blocks as there are",
            ));
        }
        Ok(stages)
    }

    /// Where the blocks' [`DeferredLinear`](crate::DeferredLinear)s leave their products.
    pub fn with_deferred_products(mut self, products: &DeferredProducts) -> Self {
        self.products = Some(products.clone());
        self
    }
}

impl<P: PipelineBlock> PipelineStage for BlockStage<P> {
    type Batch = P::Batch;

    fn blocks(&self) -> Range<usize> {
        self.first..self.first + self.blocks.len()
    }

    fn forward_block(
        &self,
        block: usize,
        input: Vec<Activation>,
        batch: &P::Batch,
    ) -> Result<Vec<Activation>> {
        self.blocks[block - self.first].forward(input, batch)
    }

    fn deferred_products(&self) -> Option<&DeferredProducts> {
        self.products.as_ref()
    }
}

/// Burn draws parameters when they are first read.
struct Draw;

impl ModuleVisitor for Draw {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        param.val();
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        param.val();
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        param.val();
    }
}
