//! [`TokenWeight`]: every token counts the same, wherever it was seen.

use crate::communicator::ReduceOp;
use crate::error::{DistError, Result};
use crate::group::ProcessGroup;

/// The factor for a micro-batch's mean loss that makes the mean over ranks and micro-steps the mean
/// over tokens: `tokens here * parts / tokens in total`, a part being one micro-step of one rank.
///
/// Without it a rank whose sequences are short counts as much as one whose sequences are long. The
/// gradient must then be averaged over ranks and micro-steps
/// ([`DataParallelConfig::average_micro_steps`](crate::data_parallel::DataParallelConfig)).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenWeight {
    total: u64,
    parts: u64,
}

impl TokenWeight {
    /// From the number of tokens and of parts of a step over all ranks.
    ///
    /// # Errors
    /// [`DistError::Config`] if there are no tokens at all: the loss of such a step is not defined.
    pub fn new(total_tokens: u64, parts: u64) -> Result<Self> {
        if total_tokens == 0 || parts == 0 {
            return Err(DistError::config(
                format!("a step of {parts} micro-batches holds {total_tokens} tokens"),
                "skip the step on every rank",
            ));
        }
        Ok(Self {
            total: total_tokens,
            parts,
        })
    }

    /// From this rank's tokens in each of its micro-steps. Collective: one small all_reduce.
    ///
    /// # Errors
    /// As [`new`](Self::new), on every rank alike; else what the group met.
    pub fn over(group: &ProcessGroup, tokens: &[u64]) -> Result<Self> {
        let local = vec![tokens.iter().sum(), tokens.len() as u64];
        let sum = group.all_reduce_values(local, ReduceOp::Sum)?;
        Self::new(sum[0], sum[1])
    }

    /// The factor for a micro-batch of `tokens` tokens; 1 exactly if all have equally many.
    pub fn weight(&self, tokens: u64) -> f64 {
        let share = u128::from(tokens) * u128::from(self.parts);
        if share == u128::from(self.total) {
            return 1.0;
        }
        share as f64 / self.total as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_of_loss_4_and_three_of_mean_2_make_2_and_a_half() {
        let weight = TokenWeight::new(4, 2).expect("tokens");
        let mean = (4.0 * weight.weight(1) + 2.0 * weight.weight(3)) / 2.0;
        assert_eq!(mean, 2.5);
    }

    #[test]
    fn equal_parts_weigh_one_and_empty_ones_nothing() {
        assert_eq!(TokenWeight::new(21, 3).expect("tokens").weight(7), 1.0);
        assert_eq!(TokenWeight::new(21, 3).expect("tokens").weight(0), 0.0);
        let error = TokenWeight::new(0, 4).expect_err("no tokens").to_string();
        assert!(error.contains("4 micro-batches"), "{error}");
    }
}
