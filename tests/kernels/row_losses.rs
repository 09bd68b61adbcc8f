//! Rows of logits in one pass, beside the same in 64 bits, element by element.

use burn_dist::kernels::{ROW_PARTS, ROW_SLOPES, row_parts, row_slopes};
use half::bf16;
use proptest::prelude::*;

/// Rows of up to 50 columns, of which the last ones are padding, and a target or none for each.
fn rows() -> impl Strategy<Value = (usize, usize, Vec<f32>, Vec<i64>)> {
    (0..5usize, 1..50usize, 0..4usize).prop_flat_map(|(rows, tokens, padding)| {
        let columns = tokens + padding;
        let logits = prop::collection::vec(-30.0..30.0f32, rows * columns);
        let targets = prop::collection::vec(-1..tokens as i64, rows);
        (Just(columns), Just(tokens), logits, targets)
    })
}

proptest! {
    #[test]
    fn parts_and_slopes_are_those_of_the_formulas(
        (columns, tokens, logits, targets) in rows(),
        slopes in prop::collection::vec(-2.0..2.0f32, 5 * ROW_SLOPES),
    ) {
        let mut parts = Vec::new();
        row_parts(&logits, [columns, tokens], &targets, &mut parts);
        prop_assert_eq!(parts.len(), targets.len() * ROW_PARTS);
        let mut slopes = slopes[..targets.len() * ROW_SLOPES].to_vec();
        for (parts, slopes) in parts.chunks(ROW_PARTS).zip(slopes.chunks_mut(ROW_SLOPES)) {
            slopes[0] = parts[0];
        }
        let mut gradient = logits.clone();
        row_slopes(&mut gradient, [columns, tokens], &targets, &slopes);
        for (row, target) in targets.iter().enumerate() {
            let z: Vec<f64> = logits[row * columns..][..tokens].iter().map(|&z| f64::from(z)).collect();
            let largest = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let here = usize::try_from(*target).ok();
            let right = [
                largest,
                z.iter().map(|z| (z - largest).exp()).sum(),
                here.map_or(0.0, |target| z[target]),
                z.iter().sum(),
            ];
            for (got, right) in parts[row * ROW_PARTS..][..ROW_PARTS].iter().zip(right) {
                prop_assert!((f64::from(*got) - right).abs() <= 2e-4 + 1e-5 * right.abs(), "{} {}", got, right);
            }
            let slopes = &slopes[row * ROW_SLOPES..][..ROW_SLOPES];
            let got = &gradient[row * columns..][..columns];
            for (column, got) in got.iter().enumerate() {
                let right = match z.get(column) {
                    None => 0.0,
                    Some(z) => {
                        let own = if here == Some(column) { f64::from(slopes[3]) } else { 0.0 };
                        (z - largest).exp() * f64::from(slopes[1]) + f64::from(slopes[2]) - own
                    }
                };
                prop_assert!((f64::from(*got) - right).abs() <= 2e-6, "{} {}", got, right);
            }
        }
    }
}

#[test]
fn what_is_no_number_stays_and_what_is_masked_counts_nothing() {
    let masked = [1.0, f32::NEG_INFINITY, 2.0];
    let mut parts = Vec::new();
    row_parts(&masked, [3, 3], &[0], &mut parts);
    let right = 1.0 + (-1f32).exp();
    assert!(
        (parts[1] - right).abs() < 1e-6 && parts[0] == 2.0,
        "{parts:?}"
    );
    let mut parts = Vec::new();
    row_parts(&[1.0, f32::NAN, 2.0], [3, 3], &[0], &mut parts);
    assert!(parts[1].is_nan());
    // A rank without tokens.
    let mut parts = Vec::new();
    row_parts::<f32>(&[7.0, 8.0], [1, 0], &[-1, -1], &mut parts);
    assert_eq!(parts[..4], [f32::NEG_INFINITY, 0.0, 0.0, 0.0]);
    // 16 bits are computed on in 32.
    let mut parts = Vec::new();
    let logits = [3.0, 1.0].map(bf16::from_f32);
    row_parts(&logits, [2, 2], &[1], &mut parts);
    assert!((parts[1] - (1.0 + (-2f32).exp())).abs() < 1e-6, "{parts:?}");
}
