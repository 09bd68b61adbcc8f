//! [`SnippetClassifier`]: Burn's transformer encoder over bytes.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};
use burn::train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep};

use super::{Language, Snippet, SnippetBatch};

const VOCABULARY: usize = 256;
const WIDTH: usize = 32;
const FEED_FORWARD: usize = 64;
const HEADS: usize = 4;
const LAYERS: usize = 1;

/// A transformer whose mean output is classified.
#[derive(Module, Debug)]
pub struct SnippetClassifier {
    tokens: Embedding,
    positions: Embedding,
    encoder: TransformerEncoder,
    output: Linear,
}

impl SnippetClassifier {
    /// A classifier with random parameters that drops a share of its activations in training.
    pub fn new(dropout: f64, device: &Device) -> Self {
        Self {
            tokens: EmbeddingConfig::new(VOCABULARY, WIDTH).init(device),
            positions: EmbeddingConfig::new(Snippet::BYTES, WIDTH).init(device),
            encoder: TransformerEncoderConfig::new(WIDTH, FEED_FORWARD, HEADS, LAYERS)
                .with_dropout(dropout)
                .with_norm_first(true)
                .init(device),
            output: LinearConfig::new(WIDTH, Language::ALL.len()).init(device),
        }
    }

    /// Scores of the languages, `[B, 3]`, for bytes `[B, T]`.
    pub fn forward(&self, bytes: Tensor<2, Int>) -> Tensor<2> {
        let [_, length] = bytes.dims();
        let places = Tensor::arange(0..length as i64, &bytes.device()).unsqueeze();
        let embedded = self.tokens.forward(bytes) + self.positions.forward(places);
        let encoded = self.encoder.forward(TransformerEncoderInput::new(embedded));
        self.output.forward(encoded.mean_dim(1).squeeze_dim(1))
    }

    fn classify(&self, batch: SnippetBatch) -> ClassificationOutput {
        let scores = self.forward(batch.bytes);
        let loss = CrossEntropyLossConfig::new()
            .init(&scores.device())
            .forward(scores.clone(), batch.languages.clone());
        ClassificationOutput::new(loss, scores, batch.languages)
    }
}

impl TrainStep for SnippetClassifier {
    type Input = SnippetBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: SnippetBatch) -> TrainOutput<ClassificationOutput> {
        let output = self.classify(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for SnippetClassifier {
    type Input = SnippetBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: SnippetBatch) -> ClassificationOutput {
        self.classify(batch)
    }
}
