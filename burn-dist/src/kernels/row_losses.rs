//! Cross entropy of the columns of logits that a rank has, row by row.

use super::vectors::{VectorLoop, vectorised_loop};
use super::{KernelFloat, WideFloat};

/// What a row of logits gives in one pass: `[largest, sum of e^(z - largest), logit of the target, sum]`.
pub const ROW_PARTS: usize = 4;

/// What its gradient needs: `[largest, factor of e^(z - largest), what every token gets, what the target
/// gets]`.
pub const ROW_SLOPES: usize = 4;

/// `[rows, columns], [rows] -> [rows, ROW_PARTS]`: each row is read from memory once. Columns from `tokens` on
/// are padding; a negative target is another rank's, or counts nothing. Of no tokens the largest is minus
/// infinity and all else 0.
///
/// # Panics
/// If lengths do not fit, or a target is none of the tokens.
pub fn row_parts<E: KernelFloat>(
    logits: &[E],
    [columns, tokens]: [usize; 2],
    targets: &[i64],
    parts: &mut Vec<E::Wide>,
) {
    assert_eq!(
        logits.len(),
        targets.len() * columns,
        "rows of these columns"
    );
    vectorised_loop(Parts {
        logits,
        columns,
        tokens,
        targets,
        parts,
    });
}

struct Parts<'a, E: KernelFloat> {
    logits: &'a [E],
    columns: usize,
    tokens: usize,
    targets: &'a [i64],
    parts: &'a mut Vec<E::Wide>,
}

impl<E: KernelFloat> VectorLoop for Parts<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        for (row, target) in self.targets.iter().enumerate() {
            let row = &self.logits[row * self.columns..][..self.tokens];
            self.parts.extend(parts_of(row, *target));
        }
    }
}

/// Neighbours go to sums of their own, so that the compiler may take several at once; a fixed number, so that
/// results do not depend on the processor.
const LANES: usize = 16;

#[inline(always)]
fn parts_of<E: KernelFloat>(row: &[E], target: i64) -> [E::Wide; ROW_PARTS] {
    let zero = E::Wide::from_f64(0.0);
    let mut lanes = [E::Wide::from_f64(f64::NEG_INFINITY); LANES];
    let (blocks, rest) = row.as_chunks::<LANES>();
    for block in blocks {
        for (most, z) in lanes.iter_mut().zip(block) {
            *most = larger(*most, z.widen());
        }
    }
    for (most, z) in lanes.iter_mut().zip(rest) {
        *most = larger(*most, z.widen());
    }
    let largest = lanes.into_iter().reduce(larger).unwrap_or(zero);
    let (mut exponentials, mut sums) = ([zero; LANES], [zero; LANES]);
    for block in blocks {
        for ((e, sum), z) in exponentials.iter_mut().zip(&mut sums).zip(block) {
            let z = z.widen();
            *e = *e + (z - largest).exp();
            *sum = *sum + z;
        }
    }
    for ((e, sum), z) in exponentials.iter_mut().zip(&mut sums).zip(rest) {
        let z = z.widen();
        *e = *e + (z - largest).exp();
        *sum = *sum + z;
    }
    let total = |lanes: [E::Wide; LANES]| lanes.into_iter().fold(zero, |a, b| a + b);
    let of_target = match usize::try_from(target) {
        Ok(target) => row[target].widen(),
        Err(_) => zero,
    };
    [largest, total(exponentials), of_target, total(sums)]
}

/// The larger one; what is no number is passed over.
#[inline(always)]
fn larger<W: WideFloat>(a: W, b: W) -> W {
    if b > a { b } else { a }
}

/// `[rows, columns]` in place: logits become `factor e^(z - largest) + every`, at the target less by `target`;
/// padding becomes 0. `slopes` are `[rows, ROW_SLOPES]`.
///
/// # Panics
/// If lengths do not fit, or a target is none of the tokens.
pub fn row_slopes<E: KernelFloat>(
    logits: &mut [E],
    [columns, tokens]: [usize; 2],
    targets: &[i64],
    slopes: &[E::Wide],
) {
    assert_eq!(
        logits.len(),
        targets.len() * columns,
        "rows of these columns"
    );
    assert_eq!(
        slopes.len(),
        targets.len() * ROW_SLOPES,
        "a quadruple for each row"
    );
    vectorised_loop(Slopes {
        logits,
        columns,
        tokens,
        targets,
        slopes,
    });
}

struct Slopes<'a, E: KernelFloat> {
    logits: &'a mut [E],
    columns: usize,
    tokens: usize,
    targets: &'a [i64],
    slopes: &'a [E::Wide],
}

impl<E: KernelFloat> VectorLoop for Slopes<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let (slopes, _) = self.slopes.as_chunks::<ROW_SLOPES>();
        for (row, (target, slopes)) in self.targets.iter().zip(slopes).enumerate() {
            let row = &mut self.logits[row * self.columns..][..self.columns];
            let (row, padding) = row.split_at_mut(self.tokens);
            let [largest, factor, every, of_target] = *slopes;
            let target = usize::try_from(*target).ok();
            // Once more for the target alone: its sum is rounded once.
            let at = target
                .map(|target| (row[target].widen() - largest).exp() * factor + every - of_target);
            for z in row.iter_mut() {
                *z = E::narrow((z.widen() - largest).exp() * factor + every);
            }
            if let (Some(target), Some(at)) = (target, at) {
                row[target] = E::narrow(at);
            }
            padding.fill(E::narrow(E::Wide::from_f64(0.0)));
        }
    }
}
