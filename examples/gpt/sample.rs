//! Text from a trained model.

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};

use super::Gpt;

/// Continues `prompt` by `length` bytes, each the likeliest of the `seq` bytes before it. Local:
/// the validation copy of a wrapped model talks to no other rank.
pub fn sample(model: &Gpt, prompt: &[u8], length: usize, seq: usize, device: &Device) -> Vec<u8> {
    let model = model.valid();
    let device = device.clone().inner();
    let mut text = prompt.to_vec();
    for _ in 0..length {
        let window = &text[text.len().saturating_sub(seq)..];
        let tokens: Vec<i64> = window.iter().map(|&byte| i64::from(byte)).collect();
        let last = tokens.len() - 1;
        let tokens = TensorData::new(tokens, [1, window.len()]);
        let logits_btv = model.forward(Tensor::<2, Int>::from_data(tokens, &device));
        let next = logits_btv.slice([0..1, last..last + 1]).argmax(2);
        text.push(next.into_scalar::<i64>() as u8);
    }
    text
}
