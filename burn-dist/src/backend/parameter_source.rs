//! [`ParameterSource`] and [`ParameterUse`]: parameters whose values are elsewhere until they are used.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use burn::backend::autodiff::NodeId;
use burn::tensor::DType;

use super::{DeviceArray, FlatArray, UnitMemory};
use crate::error::Result;

/// A leaf of the autodiff graph, to which a gradient will be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeafId(pub(super) NodeId);

/// Where an operation on a leaf writes down which one it is.
#[derive(Debug, Clone, Default)]
pub struct LeafSlot(pub(super) Arc<OnceLock<LeafId>>);

/// Which pass asks for a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pass {
    /// The model's own.
    Forward,
    /// A backward pass, which asks again for what was not kept.
    Backward,
}

/// Gives parameters when they are used and takes their gradients.
///
/// All but `whole` in a forward pass are called on the thread that runs the backward pass, under the
/// autodiff graph's lock: an implementation may wait for other ranks, each of which has a graph of its
/// own, but must not run a backward pass. None of them can return an error to the model: a failure
/// ends the group, and values that could not be had are NaN.
pub trait ParameterSource: std::fmt::Debug + Send + Sync {
    /// The unit that holds the parameter's values, and which of its elements they are.
    ///
    /// # Errors
    /// What the group met.
    fn whole(&self, parameter: usize, pass: Pass) -> Result<(Arc<UnitMemory>, Range<usize>)>;

    /// The gradient of one use, of the parameter's shape. The leaf that the parameter is kept in gets
    /// nothing yet.
    fn gradient(&self, parameter: usize, gradient: DeviceArray);

    /// All gradients of the unit have come that this backward pass will bring; called once per use.
    fn end_unit(&self, unit: usize);

    /// All gradients have come; called once per use. Returns what leaves get, one-dimensional.
    fn end_pass(&self) -> Vec<(LeafId, FlatArray)>;
}

/// One parameter of a [`ParameterSource`].
#[derive(Debug, Clone)]
pub struct ParameterUse {
    /// Where it comes from.
    pub source: Arc<dyn ParameterSource>,
    /// Its number there.
    pub parameter: usize,
    /// The shape in which it is used.
    pub shape: Vec<usize>,
    /// The element type in which it is used.
    pub dtype: DType,
    /// `true`: it is kept for the backward pass; `false`: the backward pass asks for it again.
    pub kept: bool,
    /// `true`: the leaf holds all of it, and only gradients go to the source.
    pub in_place: bool,
}
