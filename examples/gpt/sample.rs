//! Text from a trained model.

use burn::module::Module;
use burn::tensor::activation::softmax;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use super::Gpt;

/// Continues `prompt` by `length` bytes, drawn from the model's predictions after the `seq` bytes
/// before each, sharpened a little. The same seed gives the same text. Local: the validation copy of
/// a wrapped model talks to no other rank.
pub fn sample(
    model: &Gpt,
    prompt: &[u8],
    length: usize,
    seq: usize,
    seed: u64,
    device: &Device,
) -> Vec<u8> {
    const TEMPERATURE: f64 = 0.7;
    let model = model.valid();
    let device = device.clone().inner();
    let mut text = prompt.to_vec();
    let mut state = seed;
    for _ in 0..length {
        let window = &text[text.len().saturating_sub(seq)..];
        let tokens: Vec<i64> = window.iter().map(|&byte| i64::from(byte)).collect();
        let last = tokens.len() - 1;
        let tokens = TensorData::new(tokens, [1, window.len()]);
        let logits_btv = model.forward(Tensor::<2, Int>::from_data(tokens, &device));
        let logits_v = logits_btv.slice([0..1, last..last + 1]).flatten::<1>(0, 2);
        let chances = softmax(logits_v.cast(DType::F32) / TEMPERATURE, 0)
            .into_data()
            .try_to_vec::<f32>()
            .expect("invariant: cast to f32");
        // Knuth's MMIX generator: the upper bits are good enough to draw letters with.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let mut rest = (state >> 40) as f32 / (1u32 << 24) as f32;
        let drawn = chances.iter().position(|chance| {
            rest -= chance;
            rest < 0.0
        });
        text.push(drawn.unwrap_or(0) as u8);
    }
    text
}
