//! [`ShardableOptimizer`]: an optimizer, and how its state may be divided.

use burn::module::ParamGroup;
use burn::optim::ModuleOptimizer;

use crate::ElementWise;

/// An optimizer, and how its state may be divided among ranks.
///
/// Made from an [`ElementWise`] optimizer (`AdamWConfig::new().build()`), it is cut anywhere, in equal
/// parts. Made from a [`ModuleOptimizer`] (`AdamWConfig::new().init()`, LAMB, Muon, several groups,
/// gradient clipping), of which nobody can tell what it looks at, each parameter belongs to one rank
/// as a whole: the same numbers for every optimizer that treats parameters one by one, as all of a
/// `ModuleOptimizer` do.
#[derive(Clone)]
pub struct ShardableOptimizer {
    pub(crate) optimizer: ModuleOptimizer,
    pub(crate) element_wise: bool,
}

impl ShardableOptimizer {
    /// Another element-wise optimizer for a group of parameters; the last group that matches counts.
    pub fn with_group<O: ElementWise>(mut self, group: ParamGroup, optimizer: O) -> Self {
        self.optimizer = self.optimizer.with_group(group, optimizer, None);
        self
    }
}

impl<O: ElementWise> From<O> for ShardableOptimizer {
    fn from(optimizer: O) -> Self {
        Self {
            optimizer: optimizer.into(),
            element_wise: true,
        }
    }
}

impl From<ModuleOptimizer> for ShardableOptimizer {
    fn from(optimizer: ModuleOptimizer) -> Self {
        Self {
            optimizer,
            element_wise: false,
        }
    }
}
