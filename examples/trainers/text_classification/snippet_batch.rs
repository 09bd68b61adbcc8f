//! [`SnippetBatch`]: what the classifier is given at once.

use burn::tensor::{Int, Tensor};

/// `B` snippets of `T` bytes and their languages.
#[derive(Debug, Clone)]
pub struct SnippetBatch {
    /// `[B, T]`, from 0 to 255.
    pub bytes: Tensor<2, Int>,
    /// `[B]`, places in [`Language::ALL`](super::Language::ALL).
    pub languages: Tensor<1, Int>,
}
