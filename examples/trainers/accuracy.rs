//! [`Accuracy`]: how often a classifier is right.

use std::fmt;

use burn::data::dataloader::DataLoader;
use burn::data::dataset::DatasetError;
use burn::train::{ClassificationOutput, InferenceStep};

/// Items that were given their own class, of how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accuracy {
    /// Items that were given their own class.
    pub right: usize,
    /// All items.
    pub items: usize,
}

impl Accuracy {
    /// Runs `model` over all items of `loader`.
    ///
    /// # Errors
    /// If an item cannot be read.
    pub fn measure<M>(model: &M, loader: &dyn DataLoader<M::Input>) -> Result<Self, DatasetError>
    where
        M: InferenceStep<Output = ClassificationOutput>,
    {
        let mut accuracy = Self { right: 0, items: 0 };
        for batch in loader.iter() {
            let output = model.step(batch?);
            let [items, _] = output.output.dims();
            let classes = output.output.argmax(1).reshape([items]);
            let right = classes
                .equal(output.targets)
                .int()
                .sum()
                .into_scalar::<i64>();
            accuracy.right += usize::try_from(right).expect("invariant: a count of matches");
            accuracy.items += items;
        }
        Ok(accuracy)
    }

    /// In percent; NaN without items.
    pub fn percent(&self) -> f64 {
        100.0 * self.right as f64 / self.items as f64
    }
}

impl fmt::Display for Accuracy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { right, items } = self;
        write!(formatter, "{:.2} % ({right} of {items})", self.percent())
    }
}
