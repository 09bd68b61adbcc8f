//! A series that never repeats: waves whose periods have no common multiple, and noise.

use std::f64::consts::TAU;

use burn::data::dataset::InMemDataset;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::Window;

/// Amplitude and period, in steps.
const WAVES: [(f64, f64); 3] = [
    (1.0, 12.0 * std::f64::consts::SQRT_2),
    (0.6, 7.0),
    (0.3, 10.0 * std::f64::consts::PI),
];

/// Noise is uniform between this and its negative.
const NOISE: f64 = 0.1;

/// Full batches of 32, also when four of them make a step.
const TRAINING_WINDOWS: usize = 2048;
const VALIDATION_WINDOWS: usize = 512;

/// The windows for training and, of later values only, those for validation, with the noise of `seed`.
pub fn split(seed: u64) -> (InMemDataset<Window>, InMemDataset<Window>) {
    let mut noise = ChaCha8Rng::seed_from_u64(seed);
    let steps = TRAINING_WINDOWS + VALIDATION_WINDOWS + 2 * Window::VALUES;
    let series: Vec<f32> = (0..steps)
        .map(|step| {
            let waves = WAVES.map(|(size, period)| size * (TAU * step as f64 / period).sin());
            let uniform = f64::from(noise.next_u32()) / f64::from(u32::MAX);
            (waves.iter().sum::<f64>() + NOISE * (2.0 * uniform - 1.0)) as f32
        })
        .collect();
    let later = TRAINING_WINDOWS + Window::VALUES;
    (
        InMemDataset::new(windows(&series[..later])),
        InMemDataset::new(windows(&series[later..])),
    )
}

/// One window for each value that has enough before it.
fn windows(series: &[f32]) -> Vec<Window> {
    (0..series.len() - Window::VALUES)
        .map(|start| Window {
            past: std::array::from_fn(|step| series[start + step]),
            next: series[start + Window::VALUES],
        })
        .collect()
}
