//! [`Recompute`]: what a stage keeps between its passes.

use std::fmt;
use std::str::FromStr;

use burn_dist::DistError;

/// What a stage keeps of a micro-batch from its forward to its backward pass. What is not kept is computed
/// again, with the same dropout masks as long as they come from the runtime's
/// [`RandomStream`](burn_dist::random::RandomStream), and without touching running statistics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Recompute {
    /// All that autodiff keeps.
    #[default]
    Nothing,
    /// The stage's input.
    Stage,
    /// Every block's input: one block at a time is computed again.
    Blocks,
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing",
            Self::Stage => "stage",
            Self::Blocks => "blocks",
        })
    }
}

impl FromStr for Recompute {
    type Err = DistError;

    fn from_str(text: &str) -> Result<Self, DistError> {
        [Self::Nothing, Self::Stage, Self::Blocks]
            .into_iter()
            .find(|known| known.to_string() == text)
            .ok_or_else(|| {
                DistError::config(
                    format!("{text:?} cannot be computed again"),
                    "take nothing, stage or blocks",
                )
            })
    }
}
