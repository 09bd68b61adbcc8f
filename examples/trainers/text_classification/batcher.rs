//! [`SnippetBatcher`]: snippets below each other.

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{Device, Tensor, TensorData};

use super::{Snippet, SnippetBatch};

/// Puts snippets into one tensor; a byte is a token.
#[derive(Debug, Clone)]
pub struct SnippetBatcher;

impl Batcher<Snippet, SnippetBatch> for SnippetBatcher {
    fn batch(&self, items: Vec<Snippet>, device: &Device) -> SnippetBatch {
        let count = items.len();
        let bytes: Vec<i64> = items
            .iter()
            .flat_map(|item| item.bytes.map(i64::from))
            .collect();
        let languages: Vec<i64> = items.iter().map(|item| item.language as i64).collect();
        let shape = [count, Snippet::BYTES];
        SnippetBatch {
            bytes: Tensor::from_data(TensorData::new(bytes, shape), device),
            languages: Tensor::from_data(TensorData::new(languages, [count]), device),
        }
    }
}
