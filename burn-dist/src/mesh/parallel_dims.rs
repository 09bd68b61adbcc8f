//! [`ParallelDims`]: how many ways each axis splits.

use super::MeshAxis;
use crate::error::{DistError, Result};

/// The degree of each axis. Default: 1 everywhere; change fields and [`validate`](Self::validate).
///
/// Dense ranks: `pp x dp_replicate x dp_shard x cp x tp`. Expert ranks, a second view of the same:
/// `pp x expert data parallel x ep x etp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ParallelDims {
    /// Pipeline stages.
    pub pp: usize,
    /// Whole replicas.
    pub dp_replicate: usize,
    /// Ranks that shard state; [`ParallelDims::REST`] takes what the others leave.
    pub dp_shard: usize,
    /// Parts of a sequence.
    pub cp: usize,
    /// Parts of a layer.
    pub tp: usize,
    /// Ranks over which experts are spread.
    pub ep: usize,
    /// Parts of an expert's layer.
    pub etp: usize,
}

impl Default for ParallelDims {
    fn default() -> Self {
        Self {
            pp: 1,
            dp_replicate: 1,
            dp_shard: 1,
            cp: 1,
            tp: 1,
            ep: 1,
            etp: 1,
        }
    }
}

impl ParallelDims {
    /// For `dp_shard`: as many ranks as the other axes leave.
    pub const REST: usize = usize::MAX;

    /// Data parallelism alone, with whole replicas.
    pub fn replicated(ranks: usize) -> Self {
        Self {
            dp_replicate: ranks,
            ..Self::default()
        }
    }

    /// The degree of an axis.
    pub fn degree(&self, axis: MeshAxis) -> usize {
        match axis {
            MeshAxis::Pp => self.pp,
            MeshAxis::DpReplicate => self.dp_replicate,
            MeshAxis::DpShard => self.dp_shard,
            MeshAxis::Cp => self.cp,
            MeshAxis::Tp => self.tp,
            MeshAxis::Ep => self.ep,
        }
    }

    /// Fills `dp_shard` if asked to, and checks that the degrees make up the world.
    ///
    /// # Errors
    /// [`DistError::Config`] with the equation that fails and its numbers.
    pub fn validate(mut self, world_size: usize) -> Result<Self> {
        let fill = self.dp_shard == Self::REST;
        if fill {
            self.dp_shard = 1;
        }
        let named = [
            ("pp", self.pp),
            ("dp_replicate", self.dp_replicate),
            ("dp_shard", self.dp_shard),
            ("cp", self.cp),
            ("tp", self.tp),
            ("ep", self.ep),
            ("etp", self.etp),
        ];
        if let Some((name, _)) = named.iter().find(|(_, degree)| *degree == 0) {
            return Err(DistError::config(
                format!("{name} is 0"),
                "a degree is at least 1, and 1 means that the axis splits nothing",
            ));
        }
        let dense: Vec<&(&str, usize)> = named[..5]
            .iter()
            .filter(|(name, _)| !(fill && *name == "dp_shard"))
            .collect();
        let equation = dense
            .iter()
            .map(|(name, degree)| format!("{name} {degree}"))
            .collect::<Vec<_>>()
            .join(" x ");
        let product = dense
            .iter()
            .try_fold(1usize, |product, (_, degree)| product.checked_mul(*degree))
            .ok_or_else(|| {
                DistError::config(format!("{equation} overflows"), "take smaller degrees")
            })?;
        if fill {
            if !world_size.is_multiple_of(product) || world_size == 0 {
                return Err(DistError::config(
                    format!(
                        "{equation} = {product} does not divide the world of {world_size} ranks, so dp_shard cannot take the rest"
                    ),
                    "change a degree or the number of ranks",
                ));
            }
            self.dp_shard = world_size / product;
        } else if product != world_size {
            return Err(DistError::config(
                format!("{equation} = {product}, but the world has {world_size} ranks"),
                "change a degree or the number of ranks",
            ));
        }
        let stage = world_size / self.pp;
        let expert = self.ep.saturating_mul(self.etp);
        if !stage.is_multiple_of(expert) {
            return Err(DistError::config(
                format!(
                    "ep {} x etp {} = {expert} does not divide the {stage} ranks of a pipeline stage (world {world_size} / pp {})",
                    self.ep, self.etp, self.pp
                ),
                "change ep, etp or pp",
            ));
        }
        Ok(self)
    }

    /// Ranks over which an expert's state is replicated: what `ep` and `etp` leave of a stage.
    pub fn expert_data_parallel(&self) -> usize {
        self.dp_replicate * self.dp_shard * self.cp * self.tp / (self.ep * self.etp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(dims: ParallelDims, world: usize) -> String {
        dims.validate(world).expect_err("refused").to_string()
    }

    #[test]
    fn the_failing_equation_is_in_the_message() {
        let dims = ParallelDims {
            pp: 2,
            dp_shard: 2,
            tp: 2,
            ..Default::default()
        };
        assert!(dims.validate(8).is_ok());
        let text = refusal(dims, 6);
        let equation = "pp 2 x dp_replicate 1 x dp_shard 2 x cp 1 x tp 2 = 8";
        assert!(
            text.contains(equation) && text.contains("6 ranks"),
            "{text}"
        );
        let text = refusal(ParallelDims { tp: 0, ..dims }, 8);
        assert!(text.contains("tp is 0"), "{text}");
        let text = refusal(ParallelDims { ep: 3, ..dims }, 8);
        assert!(
            text.contains("ep 3 x etp 1 = 3") && text.contains("4 ranks"),
            "{text}"
        );
        let huge = ParallelDims {
            tp: usize::MAX,
            ..dims
        };
        assert!(refusal(huge, 8).contains("overflows"));
    }

    #[test]
    fn dp_shard_takes_the_rest() {
        let dims = ParallelDims {
            dp_shard: ParallelDims::REST,
            tp: 2,
            ..Default::default()
        };
        assert_eq!(dims.validate(6).expect("fits").dp_shard, 3);
        assert!(refusal(dims, 5).contains("cannot take the rest"));
    }
}
