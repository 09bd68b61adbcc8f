//! [`SequenceParallel`]: a layer of single tokens, where activations are split along the sequence.

use burn::module::{Module, Param};
use burn::nn::{LayerNorm, RmsNorm};
use burn::tensor::Tensor;

use super::TensorParallel;
use crate::collectives::copy_to_region;
use crate::error::Result;
use crate::group::ProcessGroup;
use crate::mesh::MeshAxis;
use crate::placement::LayerPlacement;

/// A layer that treats every token alike and on its own. Its output has its input's shape.
pub trait TokenWise: Module {
    /// `[.., h] -> [.., h]`.
    fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D>;

    /// The layer with its vectors as `f` makes them from the parameters' values; `f` takes all of them at
    /// once, in any order, and gives as many back.
    ///
    /// # Errors
    /// Those of `f`.
    fn with_vectors(
        &self,
        f: impl FnOnce(Vec<Tensor<1>>) -> Result<Vec<Tensor<1>>>,
    ) -> Result<Self>;
}

/// `values` as a parameter that is no leaf.
fn computed(like: &Param<Tensor<1>>, values: Tensor<1>) -> Param<Tensor<1>> {
    Param::initialized(like.id, values)
}

impl TokenWise for LayerNorm {
    fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        self.forward(input)
    }

    fn with_vectors(
        &self,
        f: impl FnOnce(Vec<Tensor<1>>) -> Result<Vec<Tensor<1>>>,
    ) -> Result<Self> {
        let mut vectors = vec![self.gamma.val()];
        vectors.extend(self.beta.as_ref().map(Param::val));
        let mut vectors = f(vectors)?.into_iter();
        let mut norm = self.clone();
        let one = "invariant: as many vectors come back";
        norm.gamma = computed(&self.gamma, vectors.next().expect(one));
        let beta = self.beta.as_ref();
        norm.beta = beta.map(|beta| computed(beta, vectors.next().expect(one)));
        Ok(norm)
    }
}

impl TokenWise for RmsNorm {
    fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        self.forward(input)
    }

    fn with_vectors(
        &self,
        f: impl FnOnce(Vec<Tensor<1>>) -> Result<Vec<Tensor<1>>>,
    ) -> Result<Self> {
        let mut vectors = f(vec![self.gamma.val()])?;
        let mut norm = self.clone();
        norm.gamma = computed(&self.gamma, vectors.swap_remove(0));
        Ok(norm)
    }
}

/// A norm of Burn, or another [`TokenWise`] layer, where activations are split along the sequence.
///
/// Each rank sees its tokens only, so its parameters, whole on every rank, get a part of their gradient: the
/// parts are added up in the backward pass, in one all_reduce for all parameters of the layer. Forward:
/// nothing is sent. Without sequence parallelism it is the layer as it is. (arXiv 2205.05198, section
/// 4.2.2.)
#[derive(Module, Debug)]
pub struct SequenceParallel<M: Module> {
    placement: LayerPlacement,
    /// The layer.
    pub layer: M,
    #[module(skip)]
    region: Option<ProcessGroup>,
}

impl<M: TokenWise> SequenceParallel<M> {
    /// Puts a layer that all ranks hold alike where activations are split. Local.
    pub fn new(layer: M, parallel: impl Into<TensorParallel>) -> Self {
        let parallel = parallel.into();
        let region = parallel
            .is_sequence_parallel()
            .then(|| parallel.group().clone());
        let placement = LayerPlacement::new(MeshAxis::Tp, parallel.group());
        Self {
            placement: match region {
                Some(_) => placement.summed("layer"),
                None => placement.replicate("layer"),
            },
            // Rank threads may start from clones of one layer: each needs leaves of its own.
            layer: match layer.devices().first() {
                Some(device) => layer.clone().fork(device),
                None => layer,
            },
            region,
        }
    }

    /// `[.., s/n, h] -> [.., s/n, h]`.
    ///
    /// # Errors
    /// What the group met.
    #[track_caller]
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Result<Tensor<D>> {
        let Some(group) = self.region.as_ref().filter(|_| input.is_autodiff()) else {
            return Ok(self.layer.forward(input));
        };
        let layer = self.layer.with_vectors(|vectors| {
            let lens: Vec<usize> = vectors.iter().map(|vector| vector.dims()[0]).collect();
            let all = copy_to_region(Tensor::cat(vectors, 0), group)?;
            let mut start = 0;
            let cut = lens.into_iter().map(|len| {
                let vector = all.clone().narrow(0, start, len);
                start += len;
                vector
            });
            Ok(cut.collect())
        })?;
        Ok(layer.forward(input))
    }
}
