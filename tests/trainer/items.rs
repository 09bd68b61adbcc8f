//! A small dataset of classes.
#![allow(unreachable_pub)]

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::{Dataset, DatasetError};
use burn::tensor::{Device, Int, Tensor, TensorData};

/// Features of an item, and classes.
pub const FEATURES: usize = 5;
pub const CLASSES: usize = 3;

#[derive(Debug, Clone)]
pub struct Items {
    pub count: usize,
    /// Reading this one fails.
    pub unreadable: Option<usize>,
}

#[derive(Debug, Clone)]
pub struct Item {
    pub number: usize,
    pub features: [f32; FEATURES],
    pub class: i32,
}

impl Dataset<Item> for Items {
    fn get(&self, index: usize) -> Result<Item, DatasetError> {
        if Some(index) == self.unreadable {
            let problem = std::io::Error::other(format!("item {index} is unreadable"));
            return Err(DatasetError::new(problem));
        }
        let wave = |k: usize| ((index * 7 + k * 3) as f32 * 0.37).sin();
        Ok(Item {
            number: index,
            features: std::array::from_fn(wave),
            class: (index * 5 % 7 % CLASSES) as i32,
        })
    }

    fn len(&self) -> usize {
        self.count
    }
}

#[derive(Debug, Clone)]
pub struct Items2Batch;

#[derive(Debug, Clone)]
pub struct Batch {
    pub numbers: Vec<usize>,
    pub inputs: Tensor<2>,
    pub targets: Tensor<1, Int>,
}

impl Batcher<Item, Batch> for Items2Batch {
    fn batch(&self, items: Vec<Item>, device: &Device) -> Batch {
        let features: Vec<f32> = items.iter().flat_map(|item| item.features).collect();
        let classes: Vec<i32> = items.iter().map(|item| item.class).collect();
        Batch {
            numbers: items.iter().map(|item| item.number).collect(),
            inputs: Tensor::from_data(TensorData::new(features, [items.len(), FEATURES]), device),
            targets: Tensor::from_data(TensorData::new(classes, [items.len()]), device),
        }
    }
}
