//! [`StateBytes`] and [`ZeroStage`]: what each stage keeps on a rank, by formula. Pure.

/// What is split over the ranks instead of kept by each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ZeroStage {
    /// Stage 0: nothing; plain data parallelism.
    Nothing,
    /// Stage 1: the optimizer's state.
    OptimizerState,
    /// Stage 2: and gradients.
    Gradients,
    /// Stage 3: and parameters.
    Parameters,
}

/// Bytes per parameter of each kind of model state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StateBytes {
    /// The parameters that the model computes with.
    pub parameter: f64,
    /// Their gradients.
    pub gradient: f64,
    /// What the optimizer keeps: moments, and master weights if there are any.
    pub optimizer: f64,
}

impl StateBytes {
    /// Adam in mixed precision: 2 + 2 + 12 (f32 master weight and two moments).
    pub const ADAM_MIXED: Self = Self {
        parameter: 2.0,
        gradient: 2.0,
        optimizer: 12.0,
    };

    /// Adam in f32: 4 + 4 + 8.
    pub const ADAM_F32: Self = Self {
        parameter: 4.0,
        gradient: 4.0,
        optimizer: 8.0,
    };

    /// Bytes on one of `n` ranks for a model of `parameters`, padding and buffers apart.
    /// (ZeRO, arXiv 1910.02054, table 1.)
    pub fn per_rank(&self, stage: ZeroStage, parameters: f64, n: usize) -> f64 {
        let kept = |bytes: f64, from: ZeroStage| match stage >= from {
            true => bytes / n as f64,
            false => bytes,
        };
        parameters
            * (kept(self.parameter, ZeroStage::Parameters)
                + kept(self.gradient, ZeroStage::Gradients)
                + kept(self.optimizer, ZeroStage::OptimizerState))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gigabytes(stage: ZeroStage, parameters: f64, n: usize) -> f64 {
        StateBytes::ADAM_MIXED.per_rank(stage, parameters, n) / 1e9
    }

    #[test]
    fn the_papers_table() {
        use ZeroStage::{Gradients, Nothing, OptimizerState, Parameters};
        // 7.5B parameters: cells are rounded.
        for (n, cells) in [
            (4, [52.5, 41.3, 30.0]),
            (16, [35.6, 21.6, 7.5]),
            (64, [31.4, 16.6, 1.88]),
            (1024, [30.1, 15.1, 0.12]),
        ] {
            assert_eq!(gigabytes(Nothing, 7.5e9, n), 120.0);
            for (stage, cell) in [OptimizerState, Gradients, Parameters]
                .into_iter()
                .zip(cells)
            {
                let found = gigabytes(stage, 7.5e9, n);
                assert!(
                    (found - cell).abs() < 0.06,
                    "{stage:?} on {n}: {found}, {cell}"
                );
            }
        }
        // 128B parameters: cells are truncated.
        for (n, cells) in [
            (4, [896.0, 704.0, 512.0]),
            (16, [608.0, 368.0, 128.0]),
            (64, [536.0, 284.0, 32.0]),
            (1024, [513.0, 257.0, 2.0]),
        ] {
            for (stage, cell) in [OptimizerState, Gradients, Parameters]
                .into_iter()
                .zip(cells)
            {
                let found = gigabytes(stage, 128e9, n);
                assert!(
                    (found - cell).abs() < 1.0,
                    "{stage:?} on {n}: {found}, {cell}"
                );
            }
        }
    }

    #[test]
    fn a_distributed_optimizer_in_f32_and_in_bf16() {
        // 8 + 8/d for f32 and f32; 6 + 12/d for bf16 parameters and f32 gradients.
        let f32s = StateBytes::ADAM_F32.per_rank(ZeroStage::OptimizerState, 1.0, 8);
        assert_eq!(f32s, 8.0 + 8.0 / 8.0);
        let mixed = StateBytes {
            gradient: 4.0,
            ..StateBytes::ADAM_MIXED
        };
        assert_eq!(
            mixed.per_rank(ZeroStage::OptimizerState, 1.0, 8),
            6.0 + 12.0 / 8.0
        );
    }
}
