//! The digits that `smartcore` ships: 1797 images from the UCI repository.

use std::sync::Arc;

use burn::data::dataset::InMemDataset;
use burn::data::dataset::transform::{PartialDataset, ShuffledDataset};
use smartcore::dataset::digits;

/// Pixels of an image, row by row.
pub(super) const PIXELS: usize = 64;

/// Images to train on, the other 389 validate: full batches of 32, also when four of them make a step.
const TRAINING_ITEMS: usize = 1408;

/// The largest value of a pixel.
const WHITE: f32 = 16.0;

/// An image and the digit that it shows.
#[derive(Debug, Clone)]
pub struct Digit {
    /// 8 rows of 8 pixels, from 0 to 1.
    pub pixels: [f32; PIXELS],
    /// From 0 to 9.
    pub label: u8,
}

/// A part of the images, in an order that a seed gives.
type Part = PartialDataset<Arc<ShuffledDataset<InMemDataset<Digit>, Digit>>, Digit>;

/// The images for training and those for validation, as `seed` deals them.
pub fn split(seed: u64) -> (Part, Part) {
    let digits = digits::load_dataset();
    let items: Vec<Digit> = digits
        .data
        .chunks_exact(PIXELS)
        .zip(&digits.target)
        .map(|(image, &label)| Digit {
            pixels: std::array::from_fn(|at| image[at] / WHITE),
            label: label as u8,
        })
        .collect();
    let end = items.len();
    let shuffled = Arc::new(ShuffledDataset::new(InMemDataset::new(items), seed));
    (
        PartialDataset::new(shuffled.clone(), 0, TRAINING_ITEMS),
        PartialDataset::new(shuffled, TRAINING_ITEMS, end),
    )
}
