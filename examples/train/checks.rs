//! What can be checked of [`Arguments`] before any rank starts.

use burn_dist::{DistError, Result};

use super::{Arguments, DTypeName};

impl Arguments {
    /// Checks what can be checked before any rank starts.
    ///
    /// # Errors
    /// [`DistError::Config`] naming the numbers.
    pub fn check(&self, ranks: usize) -> Result<()> {
        let positive = [
            ("--ranks", ranks),
            ("--as-ranks", self.virtual_ranks()),
            ("--batch", self.batch),
            ("--micro-batches", self.micro_batches),
            ("--seq", self.seq),
            ("--layers", self.layers),
            ("--hidden", self.hidden),
            ("--heads", self.heads),
            ("--steps", self.steps),
            ("--replicate", self.replicate),
            ("--tp", self.tp),
            ("--pp", self.pp),
            ("--dp", self.dp.unwrap_or(1)),
        ];
        if let Some((flag, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(DistError::config(format!("{flag} is 0"), "give at least 1"));
        }
        if let Some(given) = self.ranks.filter(|&given| given != ranks) {
            return Err(DistError::config(
                format!("--ranks {given}, but the launcher started a world of {ranks} ranks"),
                "leave --ranks out under a launcher",
            ));
        }
        self.device.check()?;
        self.check_split(ranks)?;
        self.check_strategy(ranks / self.model_ranks())?;
        self.check_pipeline()?;
        // Of one rank too: it would train each rank on its own.
        if self.as_ranks.is_some() && ranks > 1 {
            return Err(DistError::config(
                format!("--as-ranks {} with {ranks} ranks", self.virtual_ranks()),
                "--as-ranks goes with --ranks 1",
            ));
        }
        let data_ranks = ranks / self.model_ranks() * self.virtual_ranks();
        let parts = data_ranks.saturating_mul(self.micro_batches);
        if !self.batch.is_multiple_of(parts) {
            return Err(DistError::config(
                format!(
                    "--batch {} is not a multiple of {data_ranks} ranks x {} micro-batches = {parts}",
                    self.batch, self.micro_batches
                ),
                match self.batch.checked_next_multiple_of(parts) {
                    Some(batch) => format!("take {batch}"),
                    None => "take fewer".into(),
                },
            ));
        }
        if !self.hidden.is_multiple_of(self.heads) {
            return Err(DistError::config(
                format!(
                    "--hidden {} is not a multiple of --heads {}",
                    self.hidden, self.heads
                ),
                format!("take {}", self.hidden.next_multiple_of(self.heads)),
            ));
        }
        if !(self.lr.is_finite() && self.lr > 0.0) {
            return Err(DistError::config(
                format!("--lr {} is not a positive number", self.lr),
                "take one near 0.001",
            ));
        }
        Ok(())
    }

    fn check_split(&self, ranks: usize) -> Result<()> {
        let refuse = |problem: String, hint: String| Err(DistError::config(problem, hint));
        let tp = self.tp;
        let axes = match self.pp {
            1 => format!("--tp {tp}"),
            pp => format!("--tp {tp} x --pp {pp}"),
        };
        let parts = self.model_ranks();
        if !ranks.is_multiple_of(parts) {
            return refuse(
                format!("{axes} does not divide {ranks} ranks"),
                "every replica has as many ranks".into(),
            );
        }
        if let Some(dp) = self.dp.filter(|dp| dp.saturating_mul(parts) != ranks) {
            return refuse(
                format!("--dp {dp} x {axes} with {ranks} ranks"),
                "leave --ranks or --dp out".into(),
            );
        }
        if (self.sequence_parallel || self.audit) && tp == 1 {
            return refuse(
                "--sequence-parallel or --audit with --tp 1".into(),
                "both are for layers that are split".into(),
            );
        }
        if !self.heads.is_multiple_of(tp) {
            return refuse(
                format!("--tp {tp} does not divide --heads {}", self.heads),
                format!("take {} heads", self.heads.next_multiple_of(tp)),
            );
        }
        if self.sequence_parallel && !self.seq.is_multiple_of(tp) {
            return refuse(
                format!(
                    "--tp {tp} does not divide --seq {} with --sequence-parallel",
                    self.seq
                ),
                format!("take --seq {}", self.seq.next_multiple_of(tp)),
            );
        }
        Ok(())
    }

    fn check_pipeline(&self) -> Result<()> {
        let refuse = |problem: String, hint: &str| Err(DistError::config(problem, hint));
        let Some(plan) = self.plan()? else {
            return Ok(());
        };
        // Blocks are dealt in halves, and the ends of the model on their own.
        let (stages, parts) = (plan.num_stages(), 2 * self.layers + 2);
        if stages > parts {
            return refuse(
                format!(
                    "{stages} stages for {} layers of two parts, an embedding and a head",
                    self.layers
                ),
                "take fewer stages, or more layers",
            );
        }
        let others = [
            ("--zero 3", self.zero == 3),
            ("--dtype bf16", self.dtype == DTypeName::Bf16),
            ("--no-overlap", self.no_overlap && self.tp == 1),
            ("--audit", self.audit),
            ("--as-ranks", self.as_ranks.is_some()),
        ];
        if let Some((flag, _)) = others.iter().find(|(_, given)| *given) {
            return refuse(
                format!("{flag} with --pp {} or --schedule", self.pp),
                "a pipeline goes with --dp, --tp and --zero 1 or 2, in 32 bits",
            );
        }
        Ok(())
    }

    fn check_strategy(&self, ranks: usize) -> Result<()> {
        let refuse = |problem: String, hint: &str| Err(DistError::config(problem, hint));
        if self.zero > 0 && (self.no_overlap || self.as_ranks.is_some()) {
            return refuse(
                format!("--zero {} with --no-overlap or --as-ranks", self.zero),
                "these compare with --zero 0; the bits are the same",
            );
        }
        if self.replicate > 1 && self.zero != 3 {
            return refuse(
                format!("--replicate {} with --zero {}", self.replicate, self.zero),
                "replicas of shards are for --zero 3",
            );
        }
        if !ranks.is_multiple_of(self.replicate) {
            return refuse(
                format!(
                    "--replicate {} does not divide {ranks} ranks",
                    self.replicate
                ),
                "every replica has as many ranks",
            );
        }
        let is_norm = |norm: f64| norm.is_finite() && norm > 0.0;
        if let Some(norm) = self.clip.filter(|&norm| !is_norm(norm)) {
            return refuse(
                format!("--clip {norm} is not a positive number"),
                "take one near 1",
            );
        }
        if self.dtype == DTypeName::Bf16 {
            if self.no_overlap {
                return refuse(
                    "--dtype bf16 with --no-overlap".into(),
                    "leave one of them out",
                );
            }
            let replicas = self.as_ranks.map_or(1, |grouping| grouping.replicas);
            if self.as_ranks.is_some() && (self.micro_batches > 1 || replicas > 1) {
                return refuse(
                    "--dtype bf16 with --as-ranks, and --micro-batches or replicas".into(),
                    "compare one micro-batch per rank, in the grouping of N ranks",
                );
            }
        }
        Ok(())
    }
}
